{{/* Names. A release is one region, so a gateway's name is its pod's. */}}

{{- define "nightside.gateway" -}}{{ .top.Values.region }}-{{ .ordinal }}{{- end }}

{{- define "nightside.controller" -}}{{ .top.Values.controller.name }}-{{ .ordinal }}{{- end }}

{{- define "nightside.labels" -}}
app.kubernetes.io/name: nightside
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "nightside.selector" -}}
app.kubernetes.io/name: nightside
app.kubernetes.io/instance: {{ .top.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "nightside.image" -}}{{ .Values.image.repository }}@{{ .Values.image.digest }}{{- end }}

{{/* Addresses where pods of this release reach each other. */}}
{{- define "nightside.peerHost" -}}
{{ include "nightside.gateway" . }}.{{ .top.Values.region }}-peers.{{ .top.Release.Namespace }}.svc
{{- end }}

{{- define "nightside.controllerHost" -}}
{{ include "nightside.controller" . }}.{{ .top.Values.controller.name }}.{{ .top.Release.Namespace }}.svc
{{- end }}

{{/* Time from SIGTERM to SIGKILL: the hook, the drain, and the end of the process. */}}
{{- define "nightside.graceSeconds" -}}
{{- if lt (int .Values.drainSeconds) (int .Values.requestDeadlineSeconds) -}}
{{- fail "drainSeconds is below requestDeadlineSeconds, so that upgrades would cut answers off" -}}
{{- end -}}
{{ add .Values.preStopSeconds .Values.drainSeconds 30 }}
{{- end }}

{{/* Security context of a container, for the admission standard "restricted". */}}
{{- define "nightside.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: { drop: [ALL] }
{{- end }}

{{- define "nightside.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{/* At most one on a node, and evenly over zones. Takes top, component and how ("required" or "preferred"). */}}
{{- define "nightside.placement" -}}
affinity:
  podAntiAffinity:
    {{- if eq .how "required" }}
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "nightside.selector" . | nindent 12 }}
    {{- else }}
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "nightside.selector" . | nindent 14 }}
    {{- end }}
topologySpreadConstraints:
  - topologyKey: topology.kubernetes.io/zone
    maxSkew: {{ .top.Values.spread.maxSkew }}
    whenUnsatisfiable: {{ .top.Values.spread.whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- include "nightside.selector" . | nindent 8 }}
{{- with .top.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .top.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .top.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* A pod's own certificate for the mesh: of cert-manager's CSI driver, or of a secret that holds those of all. Takes
     top, uri and name (with ${POD_NAME}, which the driver fills in), and secret. */}}
{{- define "nightside.certificateVolume" -}}
{{- $peers := .top.Values.certificates.peers -}}
- name: mesh
  {{- if eq $peers.kind "certManager" }}
  csi:
    driver: csi.cert-manager.io
    readOnly: true
    volumeAttributes:
      csi.cert-manager.io/issuer-name: {{ required "certificates.peers.issuer is missing" $peers.issuer | quote }}
      csi.cert-manager.io/issuer-kind: {{ $peers.issuerKind | quote }}
      csi.cert-manager.io/issuer-group: {{ $peers.issuerGroup | quote }}
      csi.cert-manager.io/uri-sans: {{ .uri | quote }}
      csi.cert-manager.io/dns-names: {{ .name | quote }}
      csi.cert-manager.io/key-usages: digital signature,server auth,client auth
      csi.cert-manager.io/key-algorithm: ECDSA
      csi.cert-manager.io/key-size: "256"
      csi.cert-manager.io/duration: {{ $peers.duration | quote }}
      csi.cert-manager.io/renew-before: {{ $peers.renewBefore | quote }}
      csi.cert-manager.io/certificate-file: tls.crt
      csi.cert-manager.io/privatekey-file: tls.key
      csi.cert-manager.io/ca-file: ca.crt
      csi.cert-manager.io/fs-group: "65532"
  {{- else }}
  secret:
    secretName: {{ .secret }}
    defaultMode: 0440
  {{- end }}
{{- end }}

{{/* The same in a configuration file. Takes top and id. */}}
{{- define "nightside.meshTls" -}}
{{- if eq .top.Values.certificates.peers.kind "certManager" -}}
certificate: /etc/nightside/mesh/tls.crt
key: /etc/nightside/mesh/tls.key
roots: /etc/nightside/mesh/ca.crt
{{- else -}}
certificate: /etc/nightside/mesh/{{ .id }}.pem
key: /etc/nightside/mesh/{{ .id }}.key
roots: /etc/nightside/mesh/roots.pem
{{- end -}}
{{- end }}
