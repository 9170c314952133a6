variable "name" {
  type        = string
  description = "The one name that clients know, such as llm.example.net: `naming.zone` of the controller."
  validation {
    condition     = can(regex("^([a-z0-9]([a-z0-9-]*[a-z0-9])?\\.)+[a-z]{2,}$", var.name))
    error_message = "A host name in small letters, without a dot at its end."
  }
}

variable "existing_zone_id" {
  type        = string
  description = "An existing hosted zone, of the name itself or of a parent; null: a new one is made for the name."
  default     = null
}

variable "parent_zone_id" {
  type        = string
  description = "The parent zone, if it is in this account: the new zone is delegated from there. null: delegate it by hand, by the output `name_servers`."
  default     = null
  validation {
    condition     = var.parent_zone_id == null || var.existing_zone_id == null
    error_message = "An existing zone is not delegated anew."
  }
}

variable "force_destroy" {
  type        = bool
  description = "Destroy the zone even with records in it. The controller's records are not in Terraform's state, so without this a zone in use cannot be destroyed by mistake."
  default     = false
}

variable "tags" {
  type        = map(string)
  description = "Tags of all resources."
  default     = {}
}
