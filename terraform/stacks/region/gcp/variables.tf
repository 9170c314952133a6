variable "existing_network" {
  type = object({
    network = string
    subnet  = string
  })
  description = "A network and a subnet that are there, by their ids; null: `cidr` says what is made."
  default     = null
}

variable "cidr" {
  type        = string
  description = "The addresses of a subnet to be made, such as 10.22.0.0/20, without `existing_network`."
  default     = null
  validation {
    condition     = (var.cidr != null) != (var.existing_network != null)
    error_message = "Either a cidr, or an existing_network."
  }
}

variable "mesh_folder" {
  type        = string
  description = "A folder with what the other roots said: REGION.peers.json for each region, and controllers.json. null: there is none, and the variables below say it."
  default     = null
}

variable "region" {
  type        = string
  description = "The mesh's name of the region, as its policy file and its certificates have it; Google's own name, as a rule."
}

variable "jurisdiction" {
  type        = string
  description = "Whose law holds there, spelt as in the policy files."
}

variable "project" {
  type        = string
  description = "The project's id."
}

variable "gcp_region" {
  type        = string
  description = "Google's name of the region."
}

variable "slots" {
  type = map(object({
    zone        = string
    secrets     = list(string)
    health_host = optional(string)
    generation  = optional(number, 1)
  }))
  description = <<-END
    One for each gateway, by a short name that is put behind the region's: slot `a` of europe-west1 is gateway europe-west1a.
    `secrets` are secrets that this slot alone may read (projects/PROJECT/secrets/NAME; see the README).
    `health_host` is a name that its certificate for clients holds and that leads to its own address; without one its address is used, which the certificate has to hold then.
    Raising `generation` has its machine replaced: drain it before, and raise one slot's at a time (see the README).
  END
}

variable "shared_secrets" {
  type        = list(string)
  description = "Secrets that all slots may read: keys.yaml, the cache secret."
  default     = []
}

variable "machine_image" {
  type        = string
  description = "The machine image by its own name and never by its family: projects/PROJECT/global/images/NAME. It needs what modules/machine/README.md lists; nothing here looks one up."
}

variable "machine_type" {
  type        = string
  description = "Of the image's architecture. A gateway uses one core."
}

variable "package" {
  type = object({
    file   = string
    sha256 = string
  })
  description = "The bundle of deploy/bundle/make: where it lies on the machine that runs Terraform, and its SHA-256."
}

variable "policy_file" {
  type        = string
  description = "The region's residency policy, a file where Terraform runs; `regions.yaml` beside it, the table of regions that it names, goes with it."
}

variable "replicas" {
  type        = any
  description = "By gateway (such as us-east-1a), its engines, as `replicas` of a region file has them."
  default     = {}
}

variable "settings" {
  type        = any
  description = "Further sections of the region files, such as `placement` or `dns_replicas`."
  default     = {}
}

variable "has_keys" {
  type        = bool
  description = "Is there a keys.yaml among the secrets? Without one a gateway refuses to serve beyond loopback, unless `settings` says `insecure`."
  default     = true
}

variable "peers" {
  type = map(object({
    region       = string
    jurisdiction = string
    address      = string
  }))
  description = "Gateways of all other regions: `peers` of their roots' outputs."
  default     = {}
}

variable "controllers" {
  type        = list(string)
  description = "IPv4:PORT of each controller: `controllers` of the global root's outputs."
  default     = []
}

variable "latitude" {
  type        = number
  description = "Where the region is, in degrees."
}

variable "longitude" {
  type        = number
  description = "Where the region is, in degrees."
}

variable "client_cidrs" {
  type        = list(string)
  description = "Networks of clients."
  default     = ["0.0.0.0/0"]
}

variable "engines" {
  type = object({
    cidrs = list(string)
    ports = optional(list(number), [8000])
  })
  description = "Where engines are: gateways may connect there, and nowhere else but to peers, controllers and Google."
}

variable "disk_gib" {
  type        = number
  description = "Of each slot's disk: the last snapshot, usage, and audit records where there are any."
  default     = 20
}

variable "client_tls" {
  type = object({
    kind    = string
    domains = optional(list(string), [])
  })
  description = "Who ends clients' TLS. `files`: the gateway, by tls/clients.pem of its secrets, behind a balancer that hands on packets. `managed`: Google's global proxy, by a certificate for `domains` that Google renews; from there on it is TLS again."
  default     = { kind = "files" }
}

variable "client_idle_timeout_s" {
  type        = number
  description = "With `managed`, how long the proxy keeps a connection on which nothing moves. A model may think for minutes before its first token."
  default     = 900
}

variable "health_check_cidrs" {
  type        = list(string)
  description = "Where Google asks for health from, and where its proxies connect from, as its page on firewall rules for load balancing lists them."
  default     = ["35.191.0.0/16", "130.211.0.0/22", "209.85.152.0/22", "209.85.204.0/22"]
}

variable "kms_key" {
  type        = string
  description = "A key of the project's own for disks and the bucket (projects/…/cryptoKeys/…), which Google's service agents may use; null: Google's keys."
  default     = null
}

variable "collector" {
  type        = bool
  description = "Configure the Ops Agent of the machine image: logs, and metrics scraped on loopback."
  default     = true
}

variable "labels" {
  type        = map(string)
  description = "On everything that takes labels."
  default     = {}
}
