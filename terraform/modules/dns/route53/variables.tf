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
  description = "A hosted zone that is there already, of the name itself or of one above it; null: one is made for the name."
  default     = null
}

variable "parent_zone_id" {
  type        = string
  description = "The hosted zone above, where that is in this account: the new one is delegated from there. null: delegate it by hand, by the output `name_servers`."
  default     = null
  validation {
    condition     = var.parent_zone_id == null || var.existing_zone_id == null
    error_message = "A zone that is there already is not delegated anew."
  }
}

variable "force_destroy" {
  type        = bool
  description = "Destroy the zone also with records in it. The controller's are no part of Terraform's state, so that without this a zone in use cannot be destroyed by mistake."
  default     = false
}

variable "tags" {
  type        = map(string)
  description = "On everything."
  default     = {}
}
