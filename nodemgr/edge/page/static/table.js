// A table of rows: sorted, filtered, page by page. Only the rows of the page are in the document.

import * as messages from "./messages.js";
import { Keyed, el, setAttribute, setHidden, setText } from "./dom.js";
import { visible } from "./format.js";
import { arrange } from "./merge.js";

// A column: {id, label, text(row), value(row)?, draw(cell, row)?, numeric?, wide?, minor?}.
// `value` sorts; `draw` fills the cell in place of `text`; `minor` columns go first on a small screen.
export class Table {
  #shown = { rows: [], columns: [], now: 0 };

  // options: {id, title, columns, keyOf, empty, pageSize, find, actions(row)?, sortable?}
  constructor(app, options) {
    this.app = app;
    this.options = { pageSize: 25, sortable: true, find: false, ...options };
    const { id, title } = this.options;
    this.heading = el("h2", { id: `${id}-title`, tabindex: "-1" }, title);
    this.number = el("span", { class: "count" });
    this.more = el("span", { class: "more" });
    const head = el("div", { class: "section-head" }, this.heading, this.number, this.more);
    if (this.options.find) head.append(this.#finder());
    this.body = el("tbody", { role: "rowgroup" });
    this.headRow = el("tr", { role: "row" });
    this.table = el(
      "table",
      { role: "table", "aria-labelledby": `${id}-title` },
      el("thead", { role: "rowgroup" }, this.headRow),
      this.body,
    );
    this.empty = el("p", { class: "empty" });
    this.pager = this.#pager();
    this.scroll = el("div", { class: "scroll" }, this.table);
    this.element = el(
      "section",
      { class: `listing listing-${id}`, "aria-labelledby": `${id}-title` },
      head,
      this.scroll,
      this.empty,
      this.pager,
    );
    this.#heads();
    this.keyed = new Keyed(
      this.body,
      () => this.#row(),
      (element, row) => this.#fill(element, row),
    );
  }

  #finder() {
    const { id } = this.options;
    this.find = el("input", {
      id: `${id}-find`,
      type: "search",
      autocomplete: "off",
      spellcheck: "false",
      placeholder: "env, user, command …",
      oninput: () => this.app.amend({ find: this.find.value, page: null }),
    });
    return el("div", { class: "find" }, el("label", { for: `${id}-find` }, "Find"), this.find);
  }

  #heads() {
    for (const column of this.options.columns) {
      const head = el("th", { scope: "col", role: "columnheader", class: classOf(column) });
      if (this.options.sortable) {
        head.append(
          el("button", { type: "button", onclick: () => this.#sort(column) }, column.label),
        );
      } else head.append(column.label);
      column.numeric && head.classList.add("numeric");
      this.headRow.append(head);
    }
    if (this.options.actions) {
      const label = el("span", { class: "unseen" }, "Actions");
      this.headRow.append(
        el("th", { scope: "col", role: "columnheader", class: "actions" }, label),
      );
    }
  }

  #sort(column) {
    const present = this.query.sort ?? "";
    const first = column.numeric ? `-${column.id}` : column.id;
    const second = column.numeric ? column.id : `-${column.id}`;
    const next = present === first ? second : present === second ? null : first;
    this.app.amend({ sort: next, page: null });
  }

  #pager() {
    this.back = el("button", { type: "button", onclick: () => this.#turn(-1) }, "Previous");
    this.forth = el("button", { type: "button", onclick: () => this.#turn(1) }, "Next");
    this.place = el("span", { class: "place" });
    const label = `Pages of ${this.options.title}`;
    return el("nav", { class: "pager", "aria-label": label }, this.back, this.place, this.forth);
  }

  #turn(step) {
    const last = this.pages - 1;
    this.app.amend({ page: Math.min(last, Math.max(0, this.page + step)) || null });
    this.heading.focus({ preventScroll: false });
  }

  // query: {find, sort, page} of the address; `total`: of all rows, where not all are known.
  draw(rows, query = {}, total = rows.length) {
    const { columns, keyOf, pageSize, empty } = this.options;
    this.query = query;
    const found = arrange(rows, columns, query);
    this.pages = Math.max(1, Math.ceil(found.length / pageSize));
    this.page = Math.min(this.pages - 1, Math.max(0, Number(query.page) || 0));
    const first = this.page * pageSize;
    const shown = found.slice(first, first + pageSize);
    this.keyed.draw(shown, keyOf);
    setText(this.number, query.find ? `${found.length} of ${total}` : String(total));
    setHidden(this.scroll, shown.length === 0);
    setHidden(this.empty, shown.length > 0);
    setText(this.empty, query.find ? messages.pageNothingFound({ text: visible(query.find) }) : empty);
    setHidden(this.pager, this.pages === 1);
    setText(this.place, `${first + 1}–${first + shown.length} of ${found.length}`);
    setAttribute(this.back, "aria-disabled", this.page === 0 && "true");
    setAttribute(this.forth, "aria-disabled", this.page === this.pages - 1 && "true");
    if (
      this.find &&
      document.activeElement !== this.find &&
      this.find.value !== (query.find ?? "")
    ) {
      this.find.value = query.find ?? "";
    }
    this.#drawSort(query.sort ?? "");
  }

  #drawSort(sort) {
    if (!this.options.sortable) return;
    this.options.columns.forEach((column, at) => {
      const way = { [column.id]: "ascending", [`-${column.id}`]: "descending" }[sort];
      setAttribute(this.headRow.children[at], "aria-sort", way ?? false);
    });
  }

  #row() {
    const row = el("tr", { role: "row" });
    for (const column of this.options.columns) {
      const attributes = { role: "cell", class: classOf(column), "data-label": column.label };
      const cell = el("td", attributes);
      column.numeric && cell.classList.add("numeric");
      row.append(cell);
    }
    if (this.options.actions) row.append(el("td", { role: "cell", class: "actions" }));
    return row;
  }

  #fill(element, row) {
    const { columns, actions } = this.options;
    columns.forEach((column, at) => {
      const cell = element.children[at];
      const text = column.text ? column.text(row) : null;
      if (column.draw) {
        if (cell.drawn !== text || text === null) column.draw(cell, row);
        cell.drawn = text;
      } else setText(cell, visible(text));
    });
    if (actions) drawActions(element.lastElementChild, actions(row), row);
  }
}

// Actions: [{label, name, act(row)}]. The buttons stay while their labels do.
function drawActions(cell, actions, row) {
  cell.row = row;
  const labels = actions.map((action) => action.name).join("\n");
  if (cell.drawn === labels) return;
  cell.drawn = labels;
  cell.replaceChildren(
    ...actions.map((action) =>
      el(
        "button",
        {
          type: "button",
          class: "act",
          "aria-label": action.name,
          onclick: () => action.act(cell.row),
        },
        action.label,
      ),
    ),
  );
}

function classOf(column) {
  const classes = [`column-${column.id}`];
  if (column.wide) classes.push("wide");
  if (column.minor) classes.push(`minor-${column.minor}`);
  return classes.join(" ");
}
