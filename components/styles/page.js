// The Hub's answers as suggestions below the fields that name a model, Enter that runs, Escape that stops, and Back.
(() => {
  const list = Object.assign(document.createElement("datalist"), { id: "models" });
  let asked;
  const suggest = async (input) => {
    const text = input.value.trim();
    if (text.length < 2 || text === asked) return;
    asked = text;
    const answer = await fetch(`./models?q=${encodeURIComponent(text)}`).catch(() => null);
    if (!answer?.ok || asked !== text) return;
    list.replaceChildren(...(await answer.json()).map((value) => Object.assign(document.createElement("option"), { value })));
  };
  document.addEventListener("focusin", ({ target }) => {
    if (!target.matches?.(".reference input")) return;
    document.body.append(list);
    target.setAttribute("list", list.id);
    target.setAttribute("autocomplete", "off");
  });
  let wait;
  document.addEventListener("input", ({ target }) => {
    if (!target.matches?.(".reference input")) return;
    clearTimeout(wait);
    wait = setTimeout(suggest, 200, target);
  });
  // Gradio shows its page about the endpoints, which it knows on the first page only, by its own button.
  const button = () => document.querySelector("footer .show-api");
  const opening = new MutationObserver(() => button() && (opening.disconnect(), button().click()));
  if (location.hash === "#api") opening.observe(document, { childList: true, subtree: true });
  // The server fills in the form of the address, and shows its stored result.
  addEventListener("popstate", () => location.reload());
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !document.querySelector(":popover-open")) document.querySelector("#stop:not(.hidden)")?.click();
    if (event.key === "Enter" && event.target.matches?.(".reference textarea") && (event.ctrlKey || event.metaKey)) document.querySelector("#run")?.click();
  });
})();
