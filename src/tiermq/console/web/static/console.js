"use strict";
// Live parts, the tail of a topic, copy buttons, questions before changes, the slider of time, and "/" for the search field.
(() => {
  const say = (text) => { const at = document.getElementById("live-state"); if (at) at.textContent = text; };

  // What can be scrolled, and only that, can be reached by the keyboard.
  const reachable = () => {
    for (const each of document.querySelectorAll(".scroll, pre")) {
      const moves = each.scrollWidth > each.clientWidth + 1 || each.scrollHeight > each.clientHeight + 1;
      if (moves) { each.tabIndex = 0; each.setAttribute("role", "group"); each.setAttribute("aria-label", "Scrolls"); }
      else if (each.tabIndex === 0) { each.removeAttribute("tabindex"); each.removeAttribute("role"); each.removeAttribute("aria-label"); }
    }
  };
  reachable();
  const here = document.querySelector("nav [aria-current]");
  if (here) { here.scrollIntoView({ block: "nearest", inline: "center" }); }
  addEventListener("resize", reachable);

  const live = document.querySelector("[data-live]");
  if (live && window.EventSource) {
    const query = new URLSearchParams(location.search);
    query.set("path", live.dataset.live);
    const events = new EventSource("/events/page?" + query);
    events.addEventListener("part", (event) => {
      if (!live.contains(document.activeElement)) { live.innerHTML = event.data; reachable(); }
      say("live");
    });
    events.addEventListener("problem", (event) => say(event.data));
    events.onerror = () => say("not connected; trying again");
    addEventListener("pagehide", () => events.close());
  }

  const tail = document.querySelector("[data-tail]");
  if (tail) {
    let events = null;
    const button = document.getElementById("tail-button");
    const stop = () => { if (events) { events.close(); events = null; } button.textContent = "Follow new messages"; say(""); };
    button.hidden = false;
    button.addEventListener("click", () => {
      if (events) { stop(); return; }
      events = new EventSource("/events/tail?" + tail.dataset.tail);
      button.textContent = "Stop";
      say("following");
      events.addEventListener("row", (event) => {
        const row = document.createElement("tbody");
        row.innerHTML = event.data;
        while (row.lastElementChild) { tail.prepend(row.lastElementChild); }
        while (tail.children.length > 500) { tail.lastElementChild.remove(); }
      });
      events.addEventListener("problem", (event) => { const text = event.data; stop(); say(text); });
    });
    addEventListener("pagehide", stop);
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) { return; }
    const before = button.textContent;
    navigator.clipboard.writeText(button.dataset.copy).then(
      () => { button.textContent = "Copied"; setTimeout(() => { button.textContent = before; }, 1500); },
      () => { button.textContent = button.dataset.copy; });
  });

  document.addEventListener("submit", (event) => {
    const question = event.target.dataset.ask;
    if (question && !confirm(question)) { event.preventDefault(); }
  });

  const travel = document.querySelector("[data-travel]");
  if (travel) {
    const text = document.getElementById("at-text");
    const shown = () => new Date(Number(travel.value)).toISOString().slice(0, 19).replace("T", " ");
    travel.addEventListener("input", () => { text.textContent = shown(); });
    travel.addEventListener("change", () => travel.form.requestSubmit());
    if (new URLSearchParams(location.search).has("at")) { travel.focus(); }
  }

  document.addEventListener("keydown", (event) => {
    const at = document.activeElement;
    const writes = at && ["INPUT", "TEXTAREA", "SELECT"].includes(at.tagName);
    if (event.key === "/" && !writes) {
      const field = document.querySelector("input[type=search]");
      if (field) { event.preventDefault(); field.focus(); }
    } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && at && at.tagName === "TEXTAREA") {
      at.form.requestSubmit();
    }
  });
})();
