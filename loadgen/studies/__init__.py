"""Studies, each a folder with its plan, the paper's figures as data, and its page as a template.

`cells` is the one engine: it plays and keeps the cells of every study. `commands` has what the commands share,
`rendering` the templates, `data` reads the YAML files, `numbers` and `claims` do the arithmetic over seeds.
"""
