"""Settings as the YAML files of Skytrain set them, for tests that need a group and not a whole configuration."""

from skytrain.config import compose

CLOUD_DEFAULTS = compose().config.cloud
