// Before anything is drawn: light or dark as was chosen here, else as the system has it.
"use strict";
(function () {
  let chosen = null;
  try { chosen = localStorage.getItem("nightside-theme"); } catch { /* a browser that keeps nothing */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
