// What both scripts use to build a page. Texts reach it as text only, never as HTML.
"use strict";
function element(tag, parent, text, kind) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  if (parent) parent.appendChild(made);
  return made;
}

// A name that is too long loses its middle: names of runs end with the hash that tells them apart.
const END_OF_NAME = 8;
function appendName(parent, name) {
  const whole = element("span", parent, undefined, "name");
  if (name.length > END_OF_NAME) element("span", whole, name.slice(0, -END_OF_NAME));
  element("span", whole, name.slice(-END_OF_NAME));
  parent.title = name;
}

