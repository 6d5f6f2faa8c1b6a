"""Configuration files of the peers that need one: the least that a careful operator would run in production."""

import json

from harness.payload import KEY, MODEL


def haproxy(port: int, replica_ports: list[int]) -> str:
    """One thread, round robin, health checks, connections to replicas kept and shared."""
    servers = "\n".join(f"    server r{i} 127.0.0.1:{p} check inter 2s" for i, p in enumerate(replica_ports, 1))
    return f"""\
global
    nbthread 1
    maxconn 8000
defaults
    mode http
    timeout connect 2s
    timeout client 600s
    timeout server 600s
frontend gateway
    bind 127.0.0.1:{port}
    default_backend replicas
backend replicas
    balance roundrobin
    http-reuse always
    option httpchk GET /health
{servers}
"""


def nginx(port: int, replica_ports: list[int], directory: str) -> str:
    """One worker, round robin, connections to replicas kept, answers passed on as they come, no access log."""
    servers = "\n".join(f"        server 127.0.0.1:{p};" for p in replica_ports)
    return f"""\
user root;
worker_processes 1;
daemon off;
pid {directory}/nginx.pid;
worker_rlimit_nofile 20000;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    client_body_buffer_size 256k;
    client_max_body_size 64m;
    keepalive_requests 100000000;
    upstream replicas {{
{servers}
        keepalive 2048;
        keepalive_requests 100000000;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://replicas;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            proxy_buffering off;
            proxy_read_timeout 600s;
        }}
    }}
}}
"""


def litellm(replica_ports: list[int]) -> str:
    """One deployment for each replica, the strategy advised for production (simple-shuffle), a master key; as JSON."""
    deployments = [
        {
            "model_name": MODEL,
            "litellm_params": {
                "model": f"openai/{MODEL}",
                "api_base": f"http://127.0.0.1:{port}/v1",
                "api_key": "none",
                # without prices LiteLLM looks into why a request cost nothing, every time
                "input_cost_per_token": 1e-7,
                "output_cost_per_token": 1e-7,
            },
        }
        for port in replica_ports
    ]
    config = {
        "model_list": deployments,
        "router_settings": {"routing_strategy": "simple-shuffle"},
        "litellm_settings": {"request_timeout": 600, "set_verbose": False},
        "general_settings": {"master_key": KEY},
    }
    return json.dumps(config, indent=2)
