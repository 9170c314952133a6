"""Adds the operators' page to an admin address: its files, and its live content."""

from __future__ import annotations

from aiohttp import web

from mesh.page.files import add_files
from mesh.page.live import LivePage, LiveSettings, Sections, add_live


def add_page(app: web.Application, sections: Sections, settings: LiveSettings | None = None) -> None:
    add_files(app)
    add_live(app, LivePage(sections, settings))
