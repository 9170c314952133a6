variable "name" {
  type        = string
  description = "Of the network and its subnet."
}

variable "location" {
  type        = string
  description = "Azure's name of the region."
}

variable "resource_group" {
  type        = string
  description = "Where it is made."
}

variable "cidr" {
  type        = string
  description = "The network's addresses; its one subnet has them all."
  validation {
    condition     = can(cidrhost(var.cidr, 0))
    error_message = "An IPv4 network such as 10.23.0.0/20."
  }
}

variable "tags" {
  type        = map(string)
  description = "On everything."
  default     = {}
}
