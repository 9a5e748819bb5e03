// Puts the page together.

at("about").textContent = `${plural(data.runs.length, "run")} of ${data.files.join(", ")}, ${data.runs.length && HIDDEN.size ?
  [...HIDDEN].filter((key) => !ABSENT.has(key) && data.runs[0][key] !== USUAL[key]).map((key) => `${key.replaceAll("_", " ")} ${data.runs[0][key]}`).join(", ") + ". " : ""}Written ${data.written}.`;
at("convention").textContent = data.convention;
at("origin").textContent = `${data.command} — figures are derived from the raw record (docs/metrics.md); nothing in this page needs a network.`;

const notes = [...data.left_out];
if (data.runs.some((run) => run.simulated)) {
  notes.unshift("Runs of simulated executors are SIMULATED on a described cluster; nothing of them was measured on hardware.");
}
at("notes").hidden = !notes.length;
at("notes").textContent = notes.join("\n");

for (const run of data.runs) at("run").append(element("option", `${named(run)} (${run.id})`, { value: run.id }));
at("run").addEventListener("change", () => open_run(at("run").value, false));
at("number").addEventListener("change", open_step);
for (const id of ["node", "micro"]) at(id).addEventListener("change", open_node);

retheme();
if (data.runs.length) {
  select();
  open_run((data.runs.find((run) => run.numbers.some((number) => `${run.id}/${number}` in data.steps)) ?? data.runs[0]).id, false);
} else { // an answer alone
  for (const id of ["runs", "compared", "time", "series", "step"]) {
    at(id).hidden = true;
    document.querySelector(`nav a[href="#${id}"]`).hidden = true;
  }
}
window.addEventListener("resize", () => view.of && paint());
