terraform {
  required_version = ">= 1.9"

  # the state's location is given to `terraform init -backend-config=…`: storage of the team's own
  backend "azurerm" {}

  required_providers {
    azurerm = { source = "hashicorp/azurerm", version = ">= 5.0, < 6.0" }
  }
}

provider "azurerm" {
  subscription_id     = var.subscription_id
  storage_use_azuread = true
  features {}
}
