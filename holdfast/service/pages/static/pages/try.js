/* Asks a model without leaving its page. Without this script the form is submitted as usual. */
"use strict";

(() => {
  const form = document.getElementById("try-form");
  if (!form) return;
  const button = form.querySelector("button"), status = document.getElementById("try-status");
  const place = document.getElementById("try-answer"), text = document.getElementById("try-text");

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (button.disabled) return;
    const began = performance.now();
    const say = () => {
      const seconds = Math.floor((performance.now() - began) / 1000);
      status.textContent = seconds < 2 ? "Asking…" : "Loading the model… " + seconds + " s";
    };
    button.disabled = true;
    say();
    const timer = setInterval(say, 1000);
    let done = "";
    try {
      const answer = await fetch(form.action, { method: "POST", body: new FormData(form), headers: { "X-Requested-With": "try" }, credentials: "same-origin" });
      if (!answer.ok || answer.redirected) throw new Error(answer.redirected ? "you are logged out" : "the server responded with " + answer.status);
      place.innerHTML = await answer.text();
      done = "Answered in " + ((performance.now() - began) / 1000).toFixed(1) + " s";
    } catch (error) {
      done = "No answer: " + (error instanceof TypeError ? "the server does not respond" : error.message);
    }
    clearInterval(timer);
    status.textContent = done;
    button.disabled = false;
  });

  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
})();
