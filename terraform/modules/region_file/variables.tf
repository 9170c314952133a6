variable "region" {
  type        = string
  description = "The mesh's name of the region, as its policy file and its certificates have it."
  validation {
    condition     = can(regex("^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", var.region))
    error_message = "Small letters, digits and inner dashes or dots: it stands in certificates."
  }
}

variable "jurisdiction" {
  type        = string
  description = "Whose law holds there, spelt as in the policy files."
}

variable "gateways" {
  type = map(object({
    peer_address   = string
    health_host    = string
    client_address = list(string)
  }))
  description = "By the gateway's name: HOST:PORT where peers reach it, the host under which it answers for its health (its certificate for clients has to hold it), and the addresses that clients are told."
}

variable "peers" {
  type = map(object({
    region       = string
    jurisdiction = string
    address      = string
  }))
  description = "Gateways of other regions by name, with HOST:PORT where they are reached. Those of this region know each other by themselves."
  default     = {}
}

variable "controllers" {
  type        = list(string)
  description = "HOST:PORT of each controller; none: the region lives by its file alone."
  default     = []
}

variable "latitude" {
  type        = number
  description = "Where the region is, in degrees: the controller works out from it who is nearest."
  default     = null
}

variable "longitude" {
  type        = number
  description = "Where the region is, in degrees."
  default     = null
}

variable "replicas" {
  type        = any
  description = "By the gateway's name, its engines, as `replicas` of a region file has them. An engine belongs to one gateway; others of the region reach it through that one. Engines found by DNS go into `settings.dns_replicas`."
  default     = {}
  validation {
    condition     = alltrue([for name in keys(var.replicas) : contains(keys(var.gateways), name)])
    error_message = "Replicas are given to a gateway that is none of the region's."
  }
}

variable "settings" {
  type        = any
  description = "Further keys of the region file, section by section; a section named here and by this module is merged, and this one's keys win."
  default     = {}
}

variable "has_keys" {
  type        = bool
  description = "Is there a file keys.yaml among the secrets? Without one anybody who may connect may ask, which a gateway refuses beyond loopback."
  default     = true
}

variable "client_port" {
  type        = number
  description = "Where gateways listen for clients. Balancers that leave ports as they are want 443."
  default     = 8443
}
