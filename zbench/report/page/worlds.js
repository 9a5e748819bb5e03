// Worlds: ranges of speed-ups over them, and which order of systems survives them all. Advice: answers, likewise tables
// and sentences.

function tables(name, list) {
  at(name).hidden = at(`${name}link`).hidden = !list.length;
  for (const one of list) {
    const head = element("tr"), top = element("thead"), body = element("tbody"), table = element("table");
    for (const [i, title] of one.columns.entries()) head.append(element("th", title, { scope: "col", class: i ? "number" : "word" }));
    for (const row of one.rows) {
      const line = element("tr");
      for (const [i, words] of row.entries()) line.append(element("td", words, { class: i ? "number" : "word" }));
      body.append(line);
    }
    top.append(head);
    table.append(element("caption", one.title, { class: "skip" }), top, body);
    const scroll = element("div", undefined, { class: "scroll", tabindex: "0", role: "region", "aria-label": one.title });
    scroll.append(table);
    const lines = element("ul", undefined, { class: "hint" });
    for (const words of one.lines) lines.append(element("li", words));
    at(`${name}list`).append(element("h3", one.title), ...(one.columns.length ? [scroll] : []), lines);
  }
}

tables("worlds", data.worlds);
tables("advice", data.advice);
