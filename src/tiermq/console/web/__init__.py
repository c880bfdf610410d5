"""The pages and the HTTP API of the console: Starlette routes, Jinja2 templates, a script of our own, no build step."""
