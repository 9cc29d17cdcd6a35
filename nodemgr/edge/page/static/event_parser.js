// Server-sent events out of pieces of text. Pure.

export class EventParser {
  #unread = "";

  // The events that this piece completes: [{name, data}].
  push(piece) {
    const parts = (this.#unread + piece).split("\n\n");
    this.#unread = parts.pop();
    return parts.map(event).filter((one) => one !== null);
  }
}

function event(part) {
  let name = null;
  let data = null;
  for (const line of part.split("\n")) {
    const at = line.indexOf(": ");
    if (line.slice(0, at) === "event") name = line.slice(at + 2);
    if (line.slice(0, at) === "data") data = line.slice(at + 2);
  }
  return name === null || data === null ? null : { name, data: JSON.parse(data) };
}
