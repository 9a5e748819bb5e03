// Worlds: ranges of speed-ups over them, and which order of systems survives them all. Advice: answers, likewise tables
// and sentences.

function tables(name, list) {
  at(name).hidden = at(`${name}link`).hidden = !list.length;
  for (const one of list) {
    const scroll = sheet(one, new Set([0]));
    const lines = element("ul", undefined, { class: "hint" });
    for (const words of one.lines) lines.append(element("li", words));
    at(`${name}list`).append(element("h3", one.title), ...(one.columns.length ? [scroll] : []), lines);
  }
}

tables("worlds", data.worlds);
tables("advice", data.advice);
