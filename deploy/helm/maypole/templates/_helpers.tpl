{{- define "maypole.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* component: coordinator, agent or job */}}
{{- define "maypole.selector" -}}
app.kubernetes.io/name: maypole
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "maypole.labels" -}}
{{ include "maypole.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- end }}

{{/* HOST:PORT,... of all coordinators */}}
{{- define "maypole.coordinators" -}}
{{- $name := printf "%s-coordinator" .Release.Name -}}
{{- $port := .Values.coordinator.port | int -}}
{{- if .Values.coordinator.etcd -}}
{{- range $i := until (.Values.coordinator.replicas | int) -}}
{{- if $i }},{{ end -}}{{ $name }}-{{ $i }}.{{ $name }}:{{ $port }}
{{- end -}}
{{- else -}}
{{ $name }}:{{ $port }}
{{- end -}}
{{- end }}

{{- define "maypole.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* For containers that are not root; `user` is set for the pod. */}}
{{- define "maypole.restricted" -}}
runAsNonRoot: true
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/*
The daemons accept secret and keys only if nobody but the files' owner can read them. Kubernetes gives them to root, and
with fsGroup to a group; so a container of the daemon's user copies them.
*/}}
{{- define "maypole.copySecret" -}}
- name: copy-secret
  image: {{ include "maypole.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [sh, -c, install -m 0400 /run/maypole-secret/* /run/secrets/maypole]
  securityContext:
    {{- include "maypole.restricted" . | nindent 4 }}
  resources:
    requests: {cpu: 10m, memory: 16Mi}
    limits: {memory: 64Mi}
  volumeMounts:
    - {name: secret, mountPath: /run/maypole-secret, readOnly: true}
    - {name: own-secret, mountPath: /run/secrets/maypole}
{{- end }}

{{/* part: coordinator or node */}}
{{- define "maypole.secretVolume" -}}
- name: secret
  {{- if .root.Values.tls.enabled }}
  projected:
    defaultMode: {{ .mode }}
    sources:
      - secret: {name: {{ .root.Values.secretName }}}
      - secret: {name: {{ get .root.Values.tls (printf "%sSecret" .part) }}}
  {{- else }}
  secret: {secretName: {{ .root.Values.secretName }}, defaultMode: {{ .mode }}}
  {{- end }}
{{- end }}

{{- define "maypole.copySecretVolumes" -}}
{{ include "maypole.secretVolume" (dict "root" .root "part" .part "mode" "0440") }}
- name: own-secret
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
{{- end }}

{{/* The daemons' flags for secret and certificates */}}
{{- define "maypole.secretFlags" -}}
- --secret_file=/run/secrets/maypole/secret
{{- if .root.Values.tls.enabled }}
- --tls_ca=/run/secrets/maypole/ca.pem
- --tls_cert=/run/secrets/maypole/{{ .part }}.pem
- --tls_key=/run/secrets/maypole/{{ .part }}.key
{{- end }}
{{- end }}

{{- define "maypole.probes" -}}
readinessProbe:
  httpGet: {path: /metrics, port: metrics}
  periodSeconds: 5
livenessProbe:
  httpGet: {path: /metrics, port: metrics}
  periodSeconds: 20
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}
