"""Trees of XGBoost; each process has a part of the rows, and rank 0 writes the model to out."""

import os
from threading import Thread

import numpy as np
import xgboost
from xgboost.tracker import RabitTracker

rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    tracker = RabitTracker(n_workers=count, host_ip=address, port=port, sortby="task")
    tracker.start()
    waiting = Thread(target=tracker.wait_for)
    waiting.start()
settings = {"dmlc_tracker_uri": address, "dmlc_tracker_port": port, "dmlc_task_id": str(rank)}
with xgboost.collective.CommunicatorContext(**settings):
    rows = np.linspace(-1, 1, 256).reshape(-1, 1)[rank::count]
    data = xgboost.DMatrix(rows, label=(3 * rows + 1).ravel())
    model = xgboost.train({"tree_method": "hist", "max_depth": 3}, data, num_boost_round=20)
    if xgboost.collective.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        model.save_model("out/model.json")
    fitted = round(float(model.predict(xgboost.DMatrix(np.array([[0.5]])))[0]), 1)
    print("rank", xgboost.collective.get_rank(), "of", xgboost.collective.get_world_size(), "value", fitted)
if rank == 0:
    waiting.join()
