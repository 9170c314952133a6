# Permissions of a slot's machine: read its own objects and secrets, write logs and metrics.

resource "google_storage_bucket_iam_member" "slot" {
  for_each = local.slots
  bucket   = google_storage_bucket.config.name
  role     = "roles/storage.objectViewer"
  member   = "serviceAccount:${google_service_account.slot[each.key].email}"

  condition {
    title      = "its own"
    expression = join(" || ", [for path in ["package", "packages/", "policy.yaml", "regions.yaml", "gateways/${each.key}/"] : "resource.name.startsWith(\"projects/_/buckets/${google_storage_bucket.config.name}/objects/${path}\")"])
  }
}

resource "google_secret_manager_secret_iam_member" "slot" {
  for_each  = local.secrets
  secret_id = each.value.secret
  role      = "roles/secretmanager.secretAccessor"
  member    = "serviceAccount:${google_service_account.slot[each.value.slot].email}"
}

resource "google_project_iam_member" "collector" {
  for_each = var.collector ? { for pair in setproduct(keys(local.slots), ["roles/logging.logWriter", "roles/monitoring.metricWriter"]) : "${pair[0]} ${pair[1]}" => pair } : {}
  project  = var.project
  role     = each.value[1]
  member   = "serviceAccount:${google_service_account.slot[each.value[0]].email}"
}
