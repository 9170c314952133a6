variable "name" {
  type        = string
  description = "Name of the gateway or controller in it."
}

variable "role" {
  type        = string
  description = "The program that runs in it: gateway or controller."
}

variable "zone" {
  type        = string
  description = "Availability zone of the interface and the disk."
}

variable "network_interface_id" {
  type        = string
  description = "The slot's interface, attached to the machine that is in the slot."
}

variable "machine_image" {
  type        = string
  description = "Id of the machine image."
}

variable "machine_type" {
  type        = string
  description = "Machine type of the image's architecture."
}

variable "generation" {
  type        = number
  description = "Raising it replaces the machine."
}

variable "existing_disk_id" {
  type        = string
  description = "A volume in the zone, in place of a new one."
  default     = null
}

variable "disk_gib" {
  type        = number
  description = "Size of the slot's disk."
}

variable "kms_key_arn" {
  type        = string
  description = "A key of the account's own for the disk; null: AWS's."
  default     = null
}

variable "target_group_arns" {
  type        = list(string)
  description = "Target groups of balancers."
  default     = []
}

variable "config_bucket" {
  type        = string
  description = "Bucket of configuration and packages."
}

variable "manifest" {
  type        = string
  description = "Key of the object that names the package."
}

variable "objects" {
  type        = map(string)
  description = "Files of /etc/nightside to keys of objects."
}

variable "secrets" {
  type        = list(string)
  description = "ARNs of secrets that become files."
}

variable "statements" {
  type        = any
  description = "The machine's permissions besides attaching its disk, reporting its drain, and fetching its objects and secrets: statements of an IAM policy."
  default     = []
}

variable "decryption_keys" {
  type        = list(string)
  description = "ARNs of the account's own keys that encrypt objects and secrets."
  default     = []
}

variable "extra_files" {
  type        = map(string)
  description = "Further files on the machine."
  default     = {}
}

variable "account" {
  type = object({
    id        = string
    partition = string
    region    = string
  })
  description = "The account's id, AWS's partition and region."
}

variable "tags" {
  type        = map(string)
  description = "Tags of all resources."
}
