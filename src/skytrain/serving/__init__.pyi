from .client import Endpoint as Endpoint, EndpointError as EndpointError, StreamEvent as StreamEvent
from .devices import LocalGpu as LocalGpu, find_gpus as find_gpus
from .engine import ServeRefused as ServeRefused, VllmEngine as VllmEngine, find_vllm as find_vllm
from .keys import ApiKey as ApiKey, choose_api_key as choose_api_key
from .served import ServedModel as ServedModel, open_served as open_served
from .server import ServerEnded as ServerEnded, VllmServer as VllmServer
from .settings import ServerSettings as ServerSettings, check_port as check_port, server_settings as server_settings
