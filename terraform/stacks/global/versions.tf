terraform {
  required_version = ">= 1.9"

  # the state's location is given to `terraform init -backend-config=…`: a bucket of the team's own
  backend "s3" {}

  required_providers {
    aws = { source = "hashicorp/aws", version = ">= 6.0, < 7.0" }
  }
}

provider "aws" {
  region = var.aws_region
  default_tags {
    tags = var.tags
  }
}
