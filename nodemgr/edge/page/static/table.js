// A table of rows: sorted, filtered, page by page. Only the rows of the page are in the document.

import { Keyed, button, el, setAttribute, setHidden, setText } from "./dom.js";
import { visible } from "./format.js";
import { arrange, grouped } from "./merge.js";

// A column: {id, label, text(row), value(row)?, draw(cell, row)?, numeric?, wide?, minor?}.
// `value` sorts; `draw` fills the cell in place of `text`; `minor` columns go first on a small screen.
export class Table {
  #shown = { rows: [], columns: [], now: 0 };

  // options: {id, title, columns, keyOf, empty, pageSize, find, actions(row)?, sortable?, group(row)?,
  // fold(rows)?}. `group`: rows of one text stand below it. `fold`: fewer rows, until the button.
  constructor(app, options) {
    this.app = app;
    this.options = { pageSize: 25, sortable: true, find: false, ...options };
    const { id, title } = this.options;
    this.heading = el("h2", { id: `${id}-title`, tabindex: "-1" }, title);
    this.number = el("span", { class: "count" });
    this.more = el("span", { class: "more" });
    const unfold = () => {
      this.isUnfolded = !this.isUnfolded;
      app.redraw();
    };
    this.unfold = button("", unfold, { class: "act", hidden: true });
    const parts = [this.heading, this.number, this.more, this.unfold];
    const head = el("div", { class: "section-head" }, ...parts);
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
      (row) => (row.heading === undefined ? this.#row() : this.#groupRow()),
      (element, row) => {
        if (row.heading === undefined) this.#fill(element, row);
        else setText(element.firstChild.firstChild, visible(row.heading));
      },
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
        head.append(button(column.label, () => this.#sort(column)));
      } else head.append(column.label);
      this.headRow.append(head);
    }
    if (this.options.actions) {
      const label = el("span", { class: "unseen" }, "Actions");
      this.headRow.append(el("th", { scope: "col", role: "columnheader", class: "actions" }, label));
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
    this.back = button("Previous", () => this.#turn(-1));
    this.forth = button("Next", () => this.#turn(1));
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
    const { columns, keyOf, pageSize, empty, group, fold } = this.options;
    this.query = query;
    const searched = group ? [...columns, { id: "group", text: group }] : columns;
    const every = arrange(rows, searched, query);
    const folded = fold ? fold(every) : every;
    const found = this.isUnfolded ? every : folded;
    setHidden(this.unfold, folded.length === every.length);
    setText(this.unfold, this.isUnfolded ? "Fold arrays" : "Unfold arrays");
    this.pages = Math.max(1, Math.ceil(found.length / pageSize));
    this.page = Math.min(this.pages - 1, Math.max(0, Number(query.page) || 0));
    const first = this.page * pageSize;
    const shown = found.slice(first, first + pageSize);
    this.keyed.draw(group ? grouped(shown, group) : shown, (row) =>
      row.heading === undefined ? keyOf(row) : `\n${row.heading}`,
    );
    setText(this.number, query.find ? `${found.length} of ${total}` : String(total));
    setHidden(this.scroll, shown.length === 0);
    setHidden(this.empty, shown.length > 0);
    setText(this.empty, query.find ? `Nothing here holds “${visible(query.find)}”.` : empty);
    setHidden(this.pager, this.pages === 1);
    setText(this.place, `${first + 1}–${first + shown.length} of ${found.length}`);
    setAttribute(this.back, "aria-disabled", this.page === 0 && "true");
    setAttribute(this.forth, "aria-disabled", this.page === this.pages - 1 && "true");
    const find = query.find ?? "";
    const isTyped = document.activeElement === this.find;
    if (this.find && !isTyped && this.find.value !== find) this.find.value = find;
    this.#drawSort(query.sort ?? "");
  }

  #drawSort(sort) {
    if (!this.options.sortable) return;
    this.options.columns.forEach((column, at) => {
      const way = { [column.id]: "ascending", [`-${column.id}`]: "descending" }[sort];
      setAttribute(this.headRow.children[at], "aria-sort", way ?? false);
    });
  }

  #groupRow() {
    const span = this.headRow.children.length;
    const cell = el("td", { role: "cell", colspan: span }, el("bdi", { dir: "auto" }, ""));
    return el("tr", { role: "row", class: "group" }, cell);
  }

  #row() {
    const row = el("tr", { role: "row" });
    for (const column of this.options.columns) {
      const attributes = { role: "cell", class: classOf(column), "data-label": column.label };
      row.append(el("td", attributes));
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
  const made = ({ label, name, act }) =>
    button(label, () => act(cell.row), { class: "act", "aria-label": name });
  cell.replaceChildren(...actions.map(made));
}

function classOf(column) {
  const classes = [`column-${column.id}`];
  for (const look of ["wide", "numeric"]) if (column[look]) classes.push(look);
  if (column.minor) classes.push(`minor-${column.minor}`);
  return classes.join(" ");
}
