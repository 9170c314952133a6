variable "cloud" {
  type        = string
  description = "The machine's cloud: aws, gcp or azure."
  validation {
    condition     = contains(["aws", "gcp", "azure"], var.cloud)
    error_message = "The cloud is aws, gcp or azure."
  }
}

variable "role" {
  type        = string
  description = "The program that runs on it: gateway or controller."
  validation {
    condition     = contains(["gateway", "controller"], var.role)
    error_message = "The role is gateway or controller."
  }
}

variable "environment" {
  type        = map(string)
  description = "Variables of the cloud's part of the scripts: CLOUD_REGION, STORE, and others that the files under files/ list."
  default     = {}
  validation {
    condition     = alltrue([for name, text in var.environment : can(regex("^[A-Z_]+$", name)) && !strcontains(text, "'") && !strcontains(text, "\n")])
    error_message = "Names are capital letters, and no value has a quote or a line break in it."
  }
}

variable "manifest" {
  type        = string
  description = "Key of the object that names the package: its SHA-256 and its key, with a blank between."
}

variable "objects" {
  type        = map(string)
  description = "Files of /etc/nightside that come from object storage: name of the file to key of the object."
  validation {
    condition     = alltrue([for name, key in var.objects : can(regex("^[a-z0-9][a-z0-9._-]*$", name)) && can(regex("^[A-Za-z0-9._/-]+$", key))])
    error_message = "Files are plain names, and keys hold letters, digits, dots, dashes and slashes."
  }
}

variable "secrets" {
  type        = list(string)
  description = "Secrets to fetch, by the cloud's names. Each holds a JSON object: name of a file below /etc/nightside, such as tls/peers.key, to its content."
  validation {
    condition     = alltrue([for each in var.secrets : can(regex("^[^\\s'\"$`\\\\]+$", each))])
    error_message = "A secret's name has no blanks, quotes, dollar signs or backslashes."
  }
}

variable "refresh" {
  type        = string
  description = "Interval at which configuration and secrets are fetched, in systemd's notation."
  default     = "5min"
  validation {
    condition     = can(regex("^[0-9]+(s|min|h)$", var.refresh))
    error_message = "A number and s, min or h."
  }
}

variable "has_farewell" {
  type        = bool
  description = "Does the cloud announce the end of the machine, and wait?"
}

variable "extra_files" {
  type        = map(string)
  description = "Further files, such as the configuration of the cloud's collector: path to content, readable by all."
  default     = {}
}
