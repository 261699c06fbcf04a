// Enter runs. In the picker Enter means what is typed, unless the arrow keys went to a suggestion first:
// Gradio's dropdown would take the first suggestion, and "gpt2" would become somebody else's model.
(() => {
  let chosen = false;
  const inspect = () => document.querySelector("#m-inspect")?.click();
  document.addEventListener("keydown", (event) => {
    const input = event.target;
    if (!(input instanceof HTMLInputElement || input instanceof HTMLTextAreaElement)) return;
    const picker = input.closest("#m-model");
    if (!picker && !input.closest("#m-options")) return;
    if (event.key !== "Enter" || event.isComposing) {
      if (picker) chosen = event.key === "ArrowDown" || event.key === "ArrowUp" || (chosen && event.key === "Tab");
      return;
    }
    if (picker && !chosen) event.stopPropagation();
    if (!picker) event.preventDefault();
    chosen = false;
    setTimeout(() => { input.blur(); setTimeout(inspect, 0); }, 0);
  }, true);
  // What is pasted is what is meant: close the list of suggestions, which would lie over the button on a narrow screen.
  document.addEventListener("paste", (event) => {
    if (event.target.closest?.("#m-model")) setTimeout(() => event.target.blur(), 50);
  }, true);
  // A figure drawn in a hidden tab does not know its width: it asks again when the tab is shown.
  document.addEventListener("click", (event) => {
    if (!event.target.closest?.("[role=tab]")) return;
    for (const wait of [0, 80, 400]) setTimeout(() => window.dispatchEvent(new Event("resize")), wait);
    // Gradio ties a read-only field's label to its copy button; a screen reader needs it on the field.
    for (const [id, name] of [["m-link", "Link to this analysis"], ["m-command", "The same on the command line"]])
      setTimeout(() => document.querySelector(`#${id} :is(input, textarea)`)?.setAttribute("aria-label", name), 80);
  });
})();
