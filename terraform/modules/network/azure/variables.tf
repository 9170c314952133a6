variable "name" {
  type        = string
  description = "Name of the network and its subnet."
}

variable "location" {
  type        = string
  description = "Azure's name of the region."
}

variable "resource_group" {
  type        = string
  description = "The resource group of the network."
}

variable "cidr" {
  type        = string
  description = "The network's addresses; its one subnet has all of them."
  validation {
    condition     = can(cidrhost(var.cidr, 0))
    error_message = "An IPv4 network such as 10.23.0.0/20."
  }
}

variable "tags" {
  type        = map(string)
  description = "Tags of all resources."
  default     = {}
}
