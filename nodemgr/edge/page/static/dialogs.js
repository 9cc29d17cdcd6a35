// Questions before an action, and forms. Knows: <dialog>. Must not know: what the action is.

import { el, setText } from "./dom.js";

// Asks, then performs. `perform()` may raise: its text is shown and the dialog stays open.
// The answer: whether it was done.
export function ask({ title, body, action, isDanger = false, perform }) {
  return new Promise((answer) => {
    const error = el("p", { class: "error", role: "alert" });
    const cancel = el("button", { type: "button" }, "Cancel");
    const confirm = el("button", { type: "submit", class: isDanger ? "danger" : "main" }, action);
    const form = el(
      "form",
      { novalidate: true },
      el("h2", { id: "dialog-title" }, title),
      ...body,
      error,
      el("div", { class: "dialog-buttons" }, cancel, confirm),
    );
    const dialog = el("dialog", { "aria-labelledby": "dialog-title" }, form);
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

// A labelled field of a form, with a hint below it.
export function field({ id, label, hint = "", control = null, ...attributes }) {
  const input = control ?? el("input", { id, name: id, autocomplete: "off", ...attributes });
  const help = hint ? el("p", { class: "hint", id: `${id}-hint` }, hint) : null;
  if (hint) input.setAttribute("aria-describedby", `${id}-hint`);
  return el("div", { class: "field" }, el("label", { for: id }, label), input, help);
}

export function choice(id, values, chosen) {
  const options = values.map(([value, label]) =>
    el("option", { value, selected: value === chosen }, label),
  );
  return el("select", { id, name: id }, ...options);
}
