# Configuration and packages: objects that machines read as they boot and every few minutes.

resource "google_storage_bucket" "config" {
  name                        = "${var.project}-${local.prefix}"
  location                    = var.gcp_region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = true # Terraform has put all its contents there
  labels                      = local.labels

  versioning {
    enabled = true
  }

  lifecycle_rule {
    action {
      type = "Delete"
    }
    condition {
      num_newer_versions         = 10
      days_since_noncurrent_time = 90
    }
  }

  dynamic "encryption" {
    for_each = var.kms_key == null ? [] : [var.kms_key]
    content {
      default_kms_key_name = encryption.value
    }
  }
}

resource "google_storage_bucket_object" "package" {
  bucket = google_storage_bucket.config.name
  name   = "packages/${var.package.sha256}.tar.gz"
  source = var.package.file

  lifecycle {
    precondition {
      condition     = filesha256(var.package.file) == var.package.sha256
      error_message = "The SHA-256 of ${var.package.file} is not the pinned one."
    }
  }
}

resource "google_storage_bucket_object" "manifest" {
  bucket  = google_storage_bucket.config.name
  name    = "package"
  content = "${var.package.sha256} packages/${var.package.sha256}.tar.gz\n"
}

resource "google_storage_bucket_object" "policy" {
  bucket  = google_storage_bucket.config.name
  name    = "policy.yaml"
  content = file(var.policy_file)
}

resource "google_storage_bucket_object" "table" {
  bucket  = google_storage_bucket.config.name
  name    = "regions.yaml"
  content = local.table
}

locals {
  beside = "${dirname(var.policy_file)}/regions.yaml"
  table  = fileexists(local.beside) ? file(local.beside) : "version: 1\nregions: {}\n"
}

resource "google_storage_bucket_object" "region_file" {
  for_each = local.slots
  bucket   = google_storage_bucket.config.name
  name     = "gateways/${each.key}/region.yaml"
  content  = module.region_file.files[each.key]
}
