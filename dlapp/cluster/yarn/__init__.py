"""The engine of a Hadoop cluster: YARN, spoken without a JVM.

`am` is the ApplicationMaster's side: `resource_manager` and `node_manager` hold its calls, `resource_requests` and
`containers` what it wants and has. `client` is the side of the commands: `rest` holds the calls, `submission`, `status`
and `kill` what is done with them. `logs` reads what containers printed.

Beside them is what client, ApplicationMaster and task share: `staging` (the files of an application), `am_plan` (what
an ApplicationMaster is told), `bundle` (dlapp on its way to a node), `task_container` (what stands before a task),
`dialect` (how GPUs are written on the wire), `convert` and `values`. Protobuf messages (`proto`) stay in here; what
comes out are values of `dlapp.cluster` and `values`.
"""
