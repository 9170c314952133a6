provider "aws" {
  region = "us-east-1"
}

variables {
  name                 = "us-east-1a"
  role                 = "gateway"
  zone                 = "us-east-1a"
  network_interface_id = "eni-1"
  machine_image        = "ami-00000000000000000"
  machine_type         = "m7g.medium"
  generation           = 1
  disk_gib             = 20
  config_bucket        = "config"
  manifest             = "package"
  objects              = { "region.yaml" = "gateways/us-east-1a/region.yaml" }
  secrets              = ["arn:aws:secretsmanager:us-east-1:123456789012:secret:a"]
  account              = { id = "123456789012", partition = "aws", region = "us-east-1" }
  tags                 = { owner = "platform" }
}

override_resource {
  target = aws_ebs_volume.this
  values = { id = "vol-0123456789abcdef0" }
}

run "one_machine_that_is_replaced_after_it_has_ended" {
  command = apply

  assert {
    condition     = [aws_autoscaling_group.this.min_size, aws_autoscaling_group.this.max_size, aws_autoscaling_group.this.desired_capacity] == [1, 1, 1]
    error_message = "The group has one machine and is never scaled."
  }
  assert {
    condition     = one(aws_autoscaling_group.this.instance_maintenance_policy).max_healthy_percentage == 100 && one(aws_autoscaling_group.this.instance_maintenance_policy).min_healthy_percentage == 0
    error_message = "The next machine waits for the interface and the disk of the previous one."
  }
  assert {
    condition     = one(aws_autoscaling_group.this.initial_lifecycle_hook).heartbeat_timeout > 660
    error_message = "AWS waits longer than a unit takes to stop."
  }
  assert {
    condition     = one(aws_autoscaling_group.this.launch_template).version == "$Latest" && one(aws_autoscaling_group.this.instance_refresh).triggers == toset(["tag"])
    error_message = "Only the generation, a tag, replaces a machine."
  }
  assert {
    condition     = contains([for tag in aws_autoscaling_group.this.tag : "${tag.key}=${tag.value}=${tag.propagate_at_launch}"], "nightside:gateway=us-east-1a=true")
    error_message = "A controller finds the machine by its tag, on the group and on the machine."
  }
}

run "its_interface_and_its_disk" {
  command = apply

  assert {
    condition     = one(aws_launch_template.this.network_interfaces).network_interface_id == "eni-1" && one(aws_launch_template.this.network_interfaces).delete_on_termination == "false"
    error_message = "The interface outlives the machine."
  }
  assert {
    condition     = aws_ebs_volume.this[0].encrypted && aws_ebs_volume.this[0].availability_zone == "us-east-1a"
    error_message = "The disk is where the interface is, and encrypted."
  }
  assert {
    condition     = strcontains(output.script, "DISK='vol-0123456789abcdef0'") && strcontains(output.script, "DISK_PATH='/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_vol0123456789abcdef0'")
    error_message = "The machine knows which disk is its own."
  }
  assert {
    condition     = one(aws_launch_template.this.metadata_options).http_tokens == "required"
    error_message = "Credentials are not available to requests that the machine is tricked into making."
  }
}

run "a_disk_that_is_there" {
  command = apply
  variables {
    existing_disk_id = "vol-0fedcba9876543210"
  }

  assert {
    condition     = length(aws_ebs_volume.this) == 0 && strcontains(output.script, "DISK='vol-0fedcba9876543210'")
    error_message = "No disk is made beside a given one."
  }
}
