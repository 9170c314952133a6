terraform {
  required_version = ">= 1.9"

  # the state's location is given to `terraform init -backend-config=…`: storage of the team's own
  backend "gcs" {}

  required_providers {
    google = { source = "hashicorp/google", version = ">= 8.0, < 9.0" }
  }
}

provider "google" {
  project = var.project
  region  = var.gcp_region
}
