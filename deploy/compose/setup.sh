#!/bin/sh
# Certificates of a development authority for the mesh of compose.yaml, renewed at each start, and one key for clients,
# which is made once: `docker compose run --rm --entrypoint cat certificates /etc/nightside/tls/client-key` shows it.
set -eu
cd "${1:-/etc/nightside/tls}"

nightside dev-certs . --renew --trust-domain mesh.local --controller controller-1 \
    --gateway us-east-1a:us-east-1 --gateway eu-west-1a:eu-west-1 --gateway ap-northeast-1a:ap-northeast-1 >/dev/null
if [ ! -e keys.yaml ]; then
    umask 077
    nightside keys add keys.yaml --id compose --tenant demo >client-key
fi
