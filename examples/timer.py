"""Wait without a process: a reminder is sent some time after an order, by a process that is alive then.

    python examples/timer.py

The wait is two seconds here, and may as well be a month. With a durable store, `stategraph work` goes on with it.
"""

import time

from stategraph import AnswerError, State, StateGraph, WaitNode

reminders = StateGraph("reminders", store="memory")
reminders.add_node("wait", WaitNode(2, reason="gives the customer time"))
reminders.add_node("remind", lambda state: {"sent": f"Have you paid order {state['order']}?"})
reminders.add_edge("wait", "remind")
reminders.set_entry_point("wait")
reminders.set_exit_point("remind")

if __name__ == "__main__":
    paused = reminders.execute(State({"order": 7}, run_id="order-7"))
    assert paused.pause is not None
    print(f"{paused.status}: {paused.pause.reason}")
    print("due now:", [run.run_id for run in reminders.recover()])
    try:
        reminders.resume("order-7")
    except AnswerError:
        print("no one goes on early")
    time.sleep(2)
    for run in reminders.recover():  # a worker does this all the time
        print(run.run_id, run.state and run.state["sent"])
