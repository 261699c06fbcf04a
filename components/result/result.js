// Brings results to life: tables sort and filter, figures are drawn when they come into sight. For page, document, frame and notebook alike.
(() => {
  const colour = (name) => getComputedStyle(document.body).getPropertyValue(`--m-${name}`).trim();
  let loading;
  const plotly = () => (loading ??= new Promise(async (done, failed) => {
    const packed = document.getElementById("plotly-gzip");  // in a document of its own
    let src = document.querySelector("meta[name=plotly]")?.content;
    if (packed) {
      const bytes = Uint8Array.from(atob(packed.textContent), (each) => each.charCodeAt(0));
      src = URL.createObjectURL(await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).blob());
    }
    document.head.append(Object.assign(document.createElement("script"), { src, onload: done, onerror: failed }));
  }));
  // Figures carry data colours only: text, grid and labels follow the page, light or dark.
  const themed = (layout) => {
    const [dim, ink, line, card] = ["dim", "ink", "line", "card"].map(colour);
    const made = { ...layout, font: { ...layout.font, color: dim }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)" };
    made.hoverlabel = { ...layout.hoverlabel, bgcolor: card, bordercolor: dim, font: { color: ink } };
    made.legend = { ...layout.legend, font: { color: ink } };
    made.annotations = (layout.annotations ?? []).map((each) => (each.bgcolor ? { ...each, bgcolor: card } : each));
    for (const name of Object.keys(layout).filter((each) => /^[xy]axis/.test(each))) made[name] = { ...layout[name], gridcolor: line, zerolinecolor: line };
    return made;
  };
  const draw = async (place) => {
    await plotly();
    const { data, layout } = JSON.parse(place.dataset.figure);
    for (const trace of data) if (trace.type === "heatmap") trace.textfont = { ...trace.textfont, color: colour("ink") };
    await Plotly.react(place, data, themed(layout), { responsive: true, displaylogo: false, modeBarButtons: [["toImage"]], toImageButtonOptions: { filename: place.dataset.title, scale: 2 } });
    place.dataset.drawn = "";
  };
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((each) => each.isIntersecting)) { seen.unobserve(entry.target); draw(entry.target); }
  }, { rootMargin: "300px" });
  const redraw = () => document.querySelectorAll(".figure[data-drawn]").forEach(draw);

  // A long table arrives with its first rows: all of them come before it is sorted or searched.
  const whole = async (table) => {
    const address = table.dataset.rows;
    if (!address) return;
    delete table.dataset.rows;
    const answer = await fetch(address);
    if (!answer.ok) return;
    table.querySelector("tbody").innerHTML = await answer.text();
    table.querySelector(".every")?.remove();
  };
  const sort = async (head) => {
    await whole(head.closest(".table"));
    const table = head.closest("table"), column = head.cellIndex, up = head.ariaSort !== "ascending";
    const key = (row) => { const cell = row.cells[column]; return "v" in cell.dataset ? (cell.dataset.v === "" ? NaN : Number(cell.dataset.v)) : cell.textContent; };
    const missing = (value) => typeof value === "number" && isNaN(value);
    const order = ([a], [b]) => (typeof a === "string" || typeof b === "string" ? String(a).localeCompare(b) : a - b) * (up ? 1 : -1);
    const rows = [...table.tBodies[0].rows].map((row) => [key(row), row]);
    const known = rows.filter(([value]) => !missing(value)).sort(order);
    for (const other of table.querySelectorAll("[aria-sort]")) other.ariaSort = null;
    head.ariaSort = up ? "ascending" : "descending";
    table.tBodies[0].append(...[...known, ...rows.filter(([value]) => missing(value))].map(([, row]) => row));
  };
  document.addEventListener("click", ({ target }) => {
    const head = target.closest?.(".result th"), every = target.closest?.(".result .every");
    if (head) sort(head);
    if (every) whole(every.closest(".table"));
    if (target.matches?.(".dialog input[readonly]")) target.select();
  });
  document.addEventListener("input", async ({ target }) => {
    if (!target.matches?.(".result .title input")) return;
    await whole(target.closest(".table"));
    const text = target.value.toLowerCase();
    for (const row of target.closest(".table").querySelectorAll("tbody tr")) row.hidden = !row.textContent.toLowerCase().includes(text);
  });
  const absolute = (address) => new URL(address, location.href).href;
  window.showResults = (place) => {
    for (const figure of place.querySelectorAll("[data-figure]:not([data-drawn])")) seen.observe(figure);
    for (const field of place.querySelectorAll("[data-url]")) field.value = absolute(field.dataset.url);
    for (const field of place.querySelectorAll("[data-frame]"))
      field.value = `<iframe src="${absolute(field.dataset.frame)}" width="100%" height="720" style="border:0" title="Mantissa"></iframe>`;
    for (const field of place.querySelectorAll("[data-badge]")) field.value = `[![Mantissa](${absolute(field.dataset.badge)})](${absolute(field.dataset.link)})`;
  };
  const begin = () => {
    showResults(document);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    new MutationObserver(redraw).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
