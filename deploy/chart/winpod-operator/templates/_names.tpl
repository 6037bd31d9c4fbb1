{{- define "winpod.selector" -}}
app.kubernetes.io/name: winpod-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "winpod.labels" -}}
{{ include "winpod.selector" . }}
app.kubernetes.io/part-of: winpod
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "winpod.exempt" -}}
{{- $admission := default dict .Values.settings.admission -}}
{{- $named := list "kube-system" -}}
{{- if hasKey $admission "exemptNamespaces" -}}
{{- $named = $admission.exemptNamespaces -}}
{{- end -}}
{{- toYaml (append $named .Release.Namespace | uniq | sortAlpha) -}}
{{- end }}

{{/* One webhook with its path. The operator writes the CA into it. */}}
{{- define "winpod.webhook" }}
    clientConfig:
      service:
        name: winpod-webhook
        namespace: {{ .root.Release.Namespace }}
        path: {{ .path }}
    namespaceSelector:
      matchExpressions:
        - key: kubernetes.io/metadata.name
          operator: NotIn
          values:
            {{- include "winpod.exempt" .root | nindent 12 }}
    failurePolicy: Ignore
    timeoutSeconds: {{ .root.Values.webhook.timeoutSeconds }}
    sideEffects: NoneOnDryRun
    admissionReviewVersions: [v1]
{{- end }}
