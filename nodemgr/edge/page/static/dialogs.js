// Questions before an action, and forms. Knows: <dialog>. Must not know: what the action is.

import { copyOf, el, partsOf, setText } from "./dom.js";

// Asks, then performs. `perform()` may raise: its text is shown and the dialog stays open.
// The answer: whether it was done.
export function ask({ title, body, action, isDanger = false, perform }) {
  return new Promise((answer) => {
    const dialog = copyOf("dialog");
    const { form, heading, error, cancel, confirm } = partsOf(dialog, PARTS);
    setText(heading, title);
    error.before(...body);
    setText(confirm, action);
    confirm.className = isDanger ? "danger" : "main";
    const opener = document.activeElement;
    let isDone = false;
    cancel.addEventListener("click", () => dialog.close());
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (confirm.getAttribute("aria-disabled") === "true") return;
      confirm.setAttribute("aria-disabled", "true");
      setText(error, "");
      try {
        await perform(form);
        isDone = true;
        dialog.close();
      } catch (fault) {
        setText(error, fault.message);
        confirm.removeAttribute("aria-disabled");
      }
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (opener?.isConnected) opener.focus();
      else document.getElementById("main").focus();
      answer(isDone);
    });
    document.body.append(dialog);
    dialog.showModal();
    const first = form.querySelector("input, select");
    (first ?? cancel).focus();
  });
}

const PARTS = {
  form: "form", heading: "h2", error: ".error", cancel: "[type=button]", confirm: "[type=submit]",
};

// A labelled field of a form, with a hint below it.
export function field({ id, label, hint = "", control = null, ...attributes }) {
  const input = control ?? el("input", { id, name: id, autocomplete: "off", ...attributes });
  const help = hint ? el("p", { class: "hint", id: `${id}-hint` }, hint) : null;
  if (hint) input.setAttribute("aria-describedby", `${id}-hint`);
  return el("div", { class: "field" }, el("label", { for: id }, label), input, help);
}

export function options(values, chosen) {
  return values.map(([value, label]) => el("option", { value, selected: value === chosen }, label));
}
