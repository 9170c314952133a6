{{/* The region file of one gateway. Takes top and ordinal. */}}
{{- define "nightside.regionFile" -}}
{{- $values := .top.Values -}}
{{- $own := index $values.gateways (int .ordinal) -}}
{{- $file := include "nightside.ownKeys" . | fromYaml -}}
{{- $peers := list -}}
{{- range $other, $_ := $values.gateways -}}
{{- if ne $other $.ordinal -}}
{{- $place := dict "top" $.top "ordinal" $other -}}
{{- $peers = append $peers (dict "gateway" (include "nightside.gateway" $place) "region" $values.region "jurisdiction" $values.jurisdiction "address" (printf "%s:7070" (include "nightside.peerHost" $place))) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $file "peers" (concat $peers $values.peers) -}}
{{- $controllers := list -}}
{{- if $values.controller.enabled -}}
{{- range $each := until (int $values.controller.replicas) -}}
{{- $controllers = append $controllers (printf "%s:7090" (include "nightside.controllerHost" (dict "top" $.top "ordinal" $each))) -}}
{{- end -}}
{{- end -}}
{{- $controllers = concat $controllers $values.controllers -}}
{{- if $controllers -}}
{{- $control := dict "controllers" $controllers "peer_address" ($own.peerAddress | default (printf "%s:7070" (include "nightside.peerHost" .))) -}}
{{- with $own.clientAddresses }}{{ $_ := set $control "client_addresses" . }}{{ end -}}
{{- with $own.healthUrl }}{{ $_ := set $control "health_url" . }}{{ end -}}
{{- if not (kindIs "invalid" $values.latitude) -}}
{{- $_ := set $control "latitude" $values.latitude -}}
{{- $_ := set $control "longitude" $values.longitude -}}
{{- end -}}
{{- $_ := set $file "control" $control -}}
{{- end -}}
{{- toYaml (mergeOverwrite (deepCopy $values.config) $file) -}}
{{- end }}

{{- define "nightside.ownKeys" -}}
{{- $id := include "nightside.gateway" . -}}
gateway: {{ $id }}
region: {{ .top.Values.region }}
jurisdiction: {{ .top.Values.jurisdiction | quote }}
policy: /etc/nightside/policy/policy.yaml
keys: /etc/nightside/keys/keys.yaml
admin_token_file: /etc/nightside/admin/token
{{- if .top.Values.cacheSecret }}
cache_secret_file: /etc/nightside/cache/secret
{{- end }}
listen:
  http: 0.0.0.0:8443
  peers: 0.0.0.0:7070
  admin: 0.0.0.0:9900
  tls:
    certificate: /etc/nightside/clients/tls.crt
    key: /etc/nightside/clients/tls.key
peering:
  tls:
    {{- include "nightside.meshTls" (dict "top" .top "id" $id) | nindent 4 }}
state:
  folder: /var/lib/nightside
limits:
  request_deadline: {{ .top.Values.requestDeadlineSeconds }}s
  drain: {{ .top.Values.drainSeconds }}s
reload:
  region_file: true
{{- end }}
