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
The daemons accept a secret's file only if nobody but its owner can read it. Kubernetes gives it to root, and with
fsGroup to a group; so a container of the daemon's user copies it.
*/}}
{{- define "maypole.copySecret" -}}
- name: copy-secret
  image: {{ include "maypole.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [install, -m, "0400", /run/maypole-secret/secret, /run/secrets/maypole/secret]
  securityContext:
    {{- include "maypole.restricted" . | nindent 4 }}
  resources:
    requests: {cpu: 10m, memory: 16Mi}
    limits: {memory: 64Mi}
  volumeMounts:
    - {name: secret, mountPath: /run/maypole-secret, readOnly: true}
    - {name: own-secret, mountPath: /run/secrets/maypole}
{{- end }}

{{- define "maypole.copySecretVolumes" -}}
- name: secret
  secret: {secretName: {{ .Values.secretName }}, defaultMode: 0440}
- name: own-secret
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
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
