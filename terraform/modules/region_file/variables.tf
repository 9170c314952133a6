variable "region" {
  type        = string
  description = "The mesh's name of the region, as in its policy file and certificates."
  validation {
    condition     = can(regex("^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", var.region))
    error_message = "A region's name has small letters, digits and inner dashes or dots, because certificates contain it."
  }
}

variable "jurisdiction" {
  type        = string
  description = "The region's jurisdiction, spelt as in the policy files."
}

variable "gateways" {
  type = map(object({
    peer_address   = string
    health_host    = string
    client_address = list(string)
  }))
  description = "By the gateway's name: HOST:PORT where peers reach it, the host at which its health is probed (its certificate for clients has to contain it), and the addresses published to clients."
}

variable "peers" {
  type = map(object({
    region       = string
    jurisdiction = string
    address      = string
  }))
  description = "Gateways of other regions by name, with their HOST:PORT. Gateways of this region find each other by themselves."
  default     = {}
}

variable "controllers" {
  type        = list(string)
  description = "HOST:PORT of each controller; none: the region uses its file alone."
  default     = []
}

variable "latitude" {
  type        = number
  description = "Coordinate of the region, in degrees: the controller computes the nearest gateways from it."
  default     = null
}

variable "longitude" {
  type        = number
  description = "Coordinate of the region, in degrees."
  default     = null
}

variable "replicas" {
  type        = any
  description = "By the gateway's name, its engines, in the form of `replicas` of a region file. An engine belongs to one gateway; others of the region reach it through that one. Engines found by DNS go into `settings.dns_replicas`."
  default     = {}
  validation {
    condition     = alltrue([for name in keys(var.replicas) : contains(keys(var.gateways), name)])
    error_message = "Replicas are given to a gateway that is not in the region."
  }
}

variable "settings" {
  type        = any
  description = "Further keys of the region file, section by section; a section named here and by this module is merged, and the keys given here win."
  default     = {}
}

variable "has_keys" {
  type        = bool
  description = "Is there a file keys.yaml among the secrets? Without one every client that can connect may send requests, which a gateway refuses beyond loopback."
  default     = true
}

variable "client_port" {
  type        = number
  description = "Port where gateways listen for clients. Balancers that do not map ports need 443."
  default     = 8443
}
