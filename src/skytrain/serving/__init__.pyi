from .client import Endpoint as Endpoint, EndpointError as EndpointError
from .devices import find_gpus as find_gpus
from .engine import ServeRefused as ServeRefused, find_vllm as find_vllm
from .keys import ApiKey as ApiKey, choose_api_key as choose_api_key
from .proxy import (
    Certificate as Certificate,
    Proxy as Proxy,
    ProxySettings as ProxySettings,
    find_nginx as find_nginx,
    given_certificate as given_certificate,
    make_certificate as make_certificate,
)
from .served import ServedModel as ServedModel, open_served as open_served
from .server import KeptServer as KeptServer, VllmServer as VllmServer
from .settings import check_port as check_port, server_settings as server_settings
