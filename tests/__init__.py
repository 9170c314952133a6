"""Tests. gRPC's C library is kept quiet before anything imports it, as the programs do, so that `make test` prints only
dots."""

from mesh.environment import keep_grpc_quiet

keep_grpc_quiet()
