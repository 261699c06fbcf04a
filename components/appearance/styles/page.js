// Enter runs. In the picker Enter means what is typed, unless the arrow keys went to a suggestion first:
// Gradio's dropdown would take the first suggestion, and "gpt2" would become somebody else's model.
(() => {
  // embed=1, once: the result alone, which any site may frame (the same rule as in front_layer.py). Said here, before anything is drawn.
  const asked = document.querySelector("gradio-app[data-query]")?.dataset.query ?? location.search;
  if (new URLSearchParams(asked).getAll("embed").join("&") === "1") document.documentElement.classList.add("m-embed");
  if (["model", "base"].some((key) => new URLSearchParams(asked).get(key))) document.documentElement.classList.add("m-asked");
  let chosen = false;
  let typing = false;
  let stopped = 0;
  const button = (id) => [...document.querySelectorAll(id)].find((found) => found.offsetParent !== null);
  // Gradio gives every page the title of the app; open tabs are told apart by their models and questions.
  const served = document.title;
  const entitle = () => {
    if (document.querySelector("gradio-app[data-query]")) return;
    const models = new URLSearchParams(location.search).getAll("model").join(", ");
    const question = document.querySelector("h1")?.textContent.trim();
    const title = models && question ? `${models} – ${question}` : served;
    if (document.title !== title) document.title = title;
  };
  const say = (text) => { const place = document.querySelector("#m-busy"); if (place) place.textContent = text; };
  // The history has one entry for each result, and one for the empty page: a run replaces what came to nothing. The address is that of the
  // run from its start, and of its result as soon as it is shown.
  let at = location.pathname + location.search;
  let running = false;
  let next = null;
  const speak = (address) => {
    if (document.querySelector("gradio-app[data-query]") || document.documentElement.classList.contains("m-embed")) return;
    const url = new URL(address, location.href);
    const [how, state] = next ?? ["replaceState", history.state];
    if (url.href !== location.href) history[how](state, "", url);
    else if (next) history.replaceState(state, "", url);
    next = null;
    at = location.pathname + location.search;
    document.documentElement.classList.toggle("m-of-example", Boolean(history.state?.example));
  };
  const failed = () => document.querySelector("#m-status .m-error");
  const begin = (example) => {
    next = [running || failed() ? "replaceState" : "pushState", { example }];
    running = true;
  };
  speak("");
  // Only here: the library changes its address itself.
  window.addEventListener("popstate", () => {
    if (document.querySelector("#m-status") && at !== location.pathname + location.search) location.reload();
  });
  const inspect = () => {
    const go = button("#m-inspect");
    if (go) { go.focus({ preventScroll: true }); begin(false); go.click(); }
    else if (button("#m-stop")) say("An analysis is running. Stop it first (Escape), then press Enter again.");
  };
  document.addEventListener("keydown", (event) => {
    const input = event.target;
    // Escape closes an open list of suggestions first; then it stops.
    const listed = input.closest?.(".m-picker") && document.querySelector(".m-picker .options");
    if (event.key === "Escape" && button("#m-stop") && !listed) button("#m-stop").click();
    if (!(input instanceof HTMLInputElement || input instanceof HTMLTextAreaElement)) return;
    const picker = input.closest(".m-picker");
    if (!picker && (!input.closest(".m-options") || input.closest("#m-pairs, #m-own, #m-text"))) return;
    // A list that scrolls takes the focus on the way, and loses it as it closes.
    if (event.key === "Tab" && listed) listed.querySelector("ul")?.setAttribute("tabindex", "-1");
    if (event.key !== "Enter" || event.isComposing) {
      if (picker) chosen = event.key === "ArrowDown" || event.key === "ArrowUp" || (chosen && event.key === "Tab");
      // Gradio's dropdown looks at a key only after the focus has moved on, and would open the list again that leaving it closed.
      if (picker && event.key === "Tab") event.stopPropagation();
      return;
    }
    if (picker && !chosen) event.stopPropagation();
    if (!picker) event.preventDefault();
    chosen = false;
    setTimeout(() => { input.blur(); setTimeout(inspect, 0); }, 0);
  }, true);
  // Gradio's dropdown acts on a key one task late, and opens its list even if the focus has moved on by then: repeat the blur.
  document.addEventListener("focusout", (event) => {
    const input = event.target;
    const picker = input.closest?.(".m-picker");
    if (!picker) return;
    setTimeout(() => {
      if (input !== document.activeElement && picker.querySelector(".options")) input.dispatchEvent(new FocusEvent("blur"));
    }, 100);
  });
  // Gradio's dropdown shows all suggestions when new ones come, and filters them when a key is pressed: so one is.
  const filter = () => {
    const input = document.activeElement;
    // Of several models only the last is sought, and the dropdown compares the whole text.
    const picker = typing && !chosen && !/[\s,;]/.test(input.value) && input.closest(".m-picker");
    const others = (option) => !option.ariaLabel?.toLowerCase().includes(input.value.toLowerCase());
    if (picker && [...picker.querySelectorAll("[role=option]")].some(others))
      input.dispatchEvent(new KeyboardEvent("keydown", { key: "Shift", bubbles: true }));
  };
  document.addEventListener("input", (event) => {
    typing = Boolean(event.target.closest?.(".m-picker"));
    setTimeout(filter, 0);
  });
  document.addEventListener("paste", (event) => {
    const input = event.target;
    if (!input.closest?.(".m-picker")) return;
    // A list of models, one a line: a field of one line would join them.
    const text = event.clipboardData?.getData("text/plain") ?? "";
    if (/[\r\n]/.test(text.trim())) {
      event.preventDefault();
      input.setRangeText(text.trim().split(/[\r\n]+/).join(", "), input.selectionStart, input.selectionEnd, "end");
      input.dispatchEvent(new Event("input", { bubbles: true }));
    }
    // What is pasted is what is meant: close the list of suggestions, which would lie over the button on a narrow screen.
    setTimeout(() => input.blur(), 50);
  }, true);
  document.addEventListener("click", (event) => {
    const format = event.target.dataset?.save;
    const plot = format && event.target.closest(".block")?.previousElementSibling?.querySelector(".js-plotly-plot");
    if (plot) window.Plotly.downloadImage(plot, { format, filename: event.target.name, scale: format === "png" ? 2 : 1 });
    // On a page of another site, the address of this app is that of its element.
    const back = event.target.closest?.(".m-back a");
    const app = document.querySelector("gradio-app[data-query][src]");
    if (back && app) back.href = new URL(back.getAttribute("href"), app.getAttribute("src"));
    // One Stop a run: Gradio's server trips over a second one that arrives while the first is at work.
    if (event.target.closest?.("#m-stop")) {
      if (Date.now() - stopped < 2000) { event.stopImmediatePropagation(); event.preventDefault(); return; }
      stopped = Date.now();
      document.body.dataset.stopped = stopped;
      speak(location.pathname);
    }
    if (event.target.closest?.("#m-inspect, #m-again, .m-chips")) {
      stopped = 0;
      origin = event.target.closest(".m-chips button");
      document.body.dataset.started = Date.now();
    }
    if (event.target.closest?.("#m-inspect, #m-stop, .m-chips")) say("");
    // Not of the click that an address makes by itself.
    if (event.isTrusted && event.target.closest?.("#m-inspect, .m-chips button")) begin(origin !== null);
    if (!event.target.closest?.("[role=tab]")) return;
    // A figure drawn in a hidden tab does not know its width: it asks again when the tab is shown.
    for (const wait of [0, 80, 400]) setTimeout(() => window.dispatchEvent(new Event("resize")), wait);
  }, true);
  // Tooltips for the names of variants and signals; a touch screen has none, and shows the meaning below the name.
  document.addEventListener("pointerover", (event) => {
    const place = event.target.closest?.("label, li, td, [role=gridcell]");
    if (!place || place.title) return;
    const name = (place.querySelector("span:first-child:not(:only-child)") ?? place).textContent.trim();
    const term = [...document.querySelectorAll(".m-names dt")].find((each) => [name, place.textContent.trim()].includes(each.textContent));
    if (term) place.title = place.dataset.meaning = term.nextElementSibling.textContent;
  });
  // A control that starts a run is hidden or disabled meanwhile: Stop has the focus instead, and the control again at the end.
  let last = null;
  let origin = null;
  const usable = (control) => control?.isConnected && control.offsetParent !== null && !control.disabled;
  const refocus = () => {
    if (usable(last) || !last?.matches("#m-inspect, #m-stop, #m-again, .m-chips button")) return;
    if (![document.body, last].includes(document.activeElement)) return;
    (button("#m-stop") ?? (usable(origin) ? origin : button("#m-inspect")))?.focus({ preventScroll: true });
  };
  document.addEventListener("focusin", (event) => {
    typing &&= event.target === last;
    last = event.target;
  });
  // A table is a stop of the Tab key only while it scrolls.
  const tabStops = () => {
    for (const table of document.querySelectorAll(".m-scroll"))
      table.tabIndex = table.scrollWidth > table.clientWidth || table.scrollHeight > table.clientHeight ? 0 : -1;
  };
  window.addEventListener("resize", tabStops);
  let spoken = null;
  let settled = 0;
  new MutationObserver(() => {
    filter();
    settled ||= setTimeout(() => { settled = 0; refocus(); tabStops(); }, 50);
    const result = document.querySelector("#m-status [data-address]");
    if (result && result !== spoken) {
      running = Boolean(result.querySelector("progress"));
      // The first progress may arrive after Stop was pressed.
      if (!running || !stopped) speak(result.dataset.address);
    }
    spoken = result;
    if (next && failed()) speak(location.pathname);
    entitle();
    // Gradio ties a read-only field's label to its copy button; a screen reader needs it on the field.
    for (const field of document.querySelectorAll(".m-share :is(input, textarea):not([aria-label])"))
      field.setAttribute("aria-label", field.closest("label")?.querySelector("[data-testid=block-info]")?.textContent.trim() ?? "");
    // The search field of a sortable table has a title alone, which is no label.
    for (const field of document.querySelectorAll(".m-rows .search-input:not([aria-label])")) field.setAttribute("aria-label", field.title);
  }).observe(document, { childList: true, subtree: true, attributes: true, attributeFilter: ["class", "style"] });
})();
