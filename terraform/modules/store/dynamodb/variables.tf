variable "name" {
  type        = string
  description = "The table's name. One table is one mesh's."
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
  description = "Without it a destroy takes the operators' orders along: `nightside ctl export` first."
  default     = true
}

variable "tags" {
  type        = map(string)
  description = "On everything."
  default     = {}
}
