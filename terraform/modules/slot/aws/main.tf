# One slot: a name, an interface, a disk and rights that stay, and a replaceable machine. It is an auto scaling group of
# one: a dead machine is replaced, and nothing is scaled.

locals {
  drain_s = 690 # longer than a unit takes to stop, which is longer than a drain
  group   = "nightside-${var.name}"
  disk    = var.existing_disk_id != null ? var.existing_disk_id : one(aws_ebs_volume.this[*].id)
  tags    = merge(var.tags, { Name = local.group, "nightside:${var.role}" = var.name })
}

module "machine" {
  source = "../../machine"

  cloud    = "aws"
  role     = var.role
  manifest = var.manifest
  objects  = var.objects
  secrets  = var.secrets
  environment = {
    CLOUD_REGION = var.account.region
    STORE        = var.config_bucket
    DISK         = local.disk
    DISK_PATH    = "/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_${replace(local.disk, "-", "")}"
    GROUP_NAME   = local.group
  }
  has_farewell = true
  extra_files  = var.extra_files
}

resource "aws_ebs_volume" "this" {
  count             = var.existing_disk_id == null ? 1 : 0
  availability_zone = var.zone
  size              = var.disk_gib
  type              = "gp3"
  encrypted         = true
  kms_key_id        = var.kms_key_arn
  tags              = local.tags
}

resource "aws_launch_template" "this" {
  name          = local.group
  description   = "${var.role} ${var.name}"
  image_id      = var.machine_image
  instance_type = var.machine_type
  user_data     = base64gzip(module.machine.script)
  ebs_optimized = true

  iam_instance_profile {
    arn = aws_iam_instance_profile.this.arn
  }

  network_interfaces {
    device_index          = 0
    network_interface_id  = var.network_interface_id
    delete_on_termination = false
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  monitoring {
    enabled = true
  }

  tag_specifications {
    resource_type = "instance"
    tags          = local.tags
  }

  tag_specifications {
    resource_type = "volume" # the system's disk; the slot's own disk is attached later
    tags          = merge(var.tags, { Name = "${local.group}-system" })
  }

  tags = local.tags
}

resource "aws_autoscaling_group" "this" {
  name                      = local.group
  availability_zones        = [var.zone] # and no subnet: the interface has one
  min_size                  = 1
  max_size                  = 1
  desired_capacity          = 1
  health_check_type         = "EC2" # readiness is no sign of death: a gateway may drain or be cut off; the controller decides
  health_check_grace_period = 300
  target_group_arns         = var.target_group_arns
  wait_for_capacity_timeout = "15m"

  launch_template {
    id      = aws_launch_template.this.id
    version = "$Latest" # a new version replaces no machine: the generation does
  }

  # the interface and the disk are free only once the previous machine has ended
  instance_maintenance_policy {
    min_healthy_percentage = 0
    max_healthy_percentage = 100
  }

  instance_refresh {
    strategy = "Rolling"
    triggers = ["tag"]
    preferences {
      min_healthy_percentage = 0
      max_healthy_percentage = 100
      instance_warmup        = 60
      skip_matching          = false
      auto_rollback          = false
    }
  }

  initial_lifecycle_hook {
    name                 = "drain"
    lifecycle_transition = "autoscaling:EC2_INSTANCE_TERMINATING"
    heartbeat_timeout    = local.drain_s
    default_result       = "CONTINUE"
  }

  dynamic "tag" {
    for_each = merge(local.tags, { "nightside:generation" = tostring(var.generation) })
    content {
      key                 = tag.key
      value               = tag.value
      propagate_at_launch = true
    }
  }

  depends_on = [aws_iam_role_policy.this]
}
