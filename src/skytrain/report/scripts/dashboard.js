// The overview of a store: filters, sorts and chooses runs to compare. Texts reach the page as text only.
(() => {
let data = JSON.parse(document.getElementById("data").textContent);
const chosen = new Set();
let sorted = {column: null, down: false};

function fill() {
  const tiles = document.getElementById("tiles");
  tiles.replaceChildren();
  for (const [name, value] of data.tiles) {
    const tile = element("div", tiles);
    element("span", tile, name);
    element("b", tile, value);
  }
  document.getElementById("note").textContent = data.note;
  fillRuns();
  fillSweeps();
  fillMachines();
}

function cellValue(row, column) { return column === 0 ? row.name : row.sort[column - 1]; }

function fillRuns() {
  const word = document.getElementById("filter").value.toLowerCase();
  const rows = data.runs.filter(row => !word || row.name.toLowerCase().includes(word) || row.cells[0].includes(word));
  if (sorted.column !== null) {
    rows.sort((one, other) => {
      const a = cellValue(one, sorted.column), b = cellValue(other, sorted.column);
      if (a === null || b === null) return (a === null) - (b === null);
      return (a < b ? -1 : a > b ? 1 : 0) * (sorted.down ? -1 : 1);
    });
  }
  const table = document.getElementById("runs");
  table.replaceChildren();
  const head = element("tr", element("thead", table));
  ["run", ...data.columns].forEach((name, column) => {
    const mark = sorted.column === column ? (sorted.down ? " ↓" : " ↑") : "";
    const cell = element("th", head, name + mark);
    cell.tabIndex = 0;
    const sort = () => {
      sorted = {column, down: sorted.column === column && !sorted.down};
      fillRuns();
    };
    cell.addEventListener("click", sort);
    cell.addEventListener("keydown", event => { if (event.key === "Enter") sort(); });
  });
  const body = element("tbody", table);
  for (const row of rows) {
    const line = element("tr", body);
    const first = element("div", element("td", line), undefined, "first");
    const box = element("input", first);
    box.type = "checkbox";
    box.checked = chosen.has(row.name);
    box.setAttribute("aria-label", `compare ${row.name}`);
    box.addEventListener("change", () => {
      if (box.checked) chosen.add(row.name); else chosen.delete(row.name);
      showChosen();
    });
    const link = element("a", first);
    appendName(link, row.name);
    link.href = `/run?name=${encodeURIComponent(row.name)}`;
    row.cells.forEach((text, number) => {
      const cell = element("td", line, text);
      if (number === 0) { cell.className = `state ${text.replace(/[^a-z]/g, "-")}`; cell.title = row.reason; }
    });
  }
  document.documentElement.dataset.rows = rows.length;
}

function fillSweeps() {
  const place = document.getElementById("sweeps");
  place.replaceChildren();
  if (!data.sweeps.length) return;
  element("h2", place, "Sweeps");
  const table = element("table", place);
  const head = element("tr", element("thead", table));
  for (const name of data.sweep_columns) element("th", head, name);
  const body = element("tbody", table);
  for (const sweep of data.sweeps) {
    const line = element("tr", body);
    const first = element("td", line);
    const link = element("a", first, sweep.name);
    link.href = `/sweep?name=${encodeURIComponent(sweep.name)}`;
    for (const text of sweep.cells) element("td", line, text);
  }
}

function fillMachines() {
  const place = document.getElementById("machines");
  place.replaceChildren();
  if (!data.machines.length) return;
  element("h2", place, "Machines");
  const [names, ...rows] = data.machines;
  if (rows.length) {
    const table = element("table", place);
    const head = element("tr", element("thead", table));
    for (const name of names) element("th", head, name.toLowerCase());
    const body = element("tbody", table);
    for (const row of rows) {
      const line = element("tr", body);
      for (const text of row) element("td", line, text);
    }
  } else element("p", place, "no machine runs in this account", "note");
  for (const note of data.machine_notes) element("p", place, note, "note");
}

function showChosen() {
  const button = document.getElementById("compare");
  button.disabled = !chosen.size || chosen.size > data.most;
  button.textContent = chosen.size > data.most ? `at most ${data.most} runs` : `compare ${chosen.size || ""}`;
}

document.getElementById("filter").addEventListener("input", fillRuns);
document.getElementById("compare").addEventListener("click", () => {
  location.href = "/compare?" + [...chosen].map(name => `run=${encodeURIComponent(name)}`).join("&");
});
fill();
showChosen();

let etag = "";
async function ask() {
  const word = document.getElementById("live");
  try {
    const answer = await fetch("/api/store", {headers: etag ? {"If-None-Match": etag} : {}, cache: "no-store"});
    if (answer.status === 200) {
      etag = answer.headers.get("ETag") || "";
      data = await answer.json();
      fill();
    }
    word.textContent = `live, ${new Date().toLocaleTimeString()}`;
  } catch (error) {
    word.textContent = "the dashboard does not answer: is it still running?";
  }
  setTimeout(ask, data.loading ? 1000 : 5000);
}
setTimeout(ask, 1000);
})();
