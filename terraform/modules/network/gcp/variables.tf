variable "name" {
  type        = string
  description = "Name of the network and its subnet."
}

variable "gcp_region" {
  type        = string
  description = "Google's name of the region."
}

variable "cidr" {
  type        = string
  description = "The subnet's addresses."
  validation {
    condition     = can(cidrhost(var.cidr, 0))
    error_message = "An IPv4 network such as 10.22.0.0/20."
  }
}
