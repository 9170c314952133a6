variable "name" {
  type        = string
  description = "The table's name. Each mesh has its own table."
  validation {
    condition     = can(regex("^[A-Za-z0-9_.-]{3,255}$", var.name))
    error_message = "3 to 255 letters, digits, dashes, dots and underscores."
  }
}

variable "kms_key_arn" {
  type        = string
  description = "A key of the account's own; null: one that AWS manages."
  default     = null
}

variable "deletion_protection" {
  type        = bool
  description = "Without it a destroy deletes the operators' orders: run `nightside ctl export` first."
  default     = true
}

variable "tags" {
  type        = map(string)
  description = "Tags of all resources."
  default     = {}
}
