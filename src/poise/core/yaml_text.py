"""Which YAML reader is used, and what it raises."""

import yaml

YamlLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's where there is one: in plain Python a file of 500 replicas holds a gateway that runs up for a second."""
NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)
"""Besides bad syntax, a date that does not exist, and what is nested too deep."""
