"""One DynamoDB table over boto3, in a few threads of its own: each call has a time limit, and errors become StoreError.

The table knows items by their `id` and nothing of their meaning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from msgspec import Struct

from controller.store.store import StoreUnavailable

_SECOND_NS = 1_000_000_000
_THREADS = 4
_WRITE_ITEMS_MAX = 25
_READ_ITEMS_MAX = 16
"""Items in one read: an item has up to 400 KB, an answer up to 16 MB."""
_TRIES = 4
_THROTTLED_PAUSE_S = 0.05
_Result = TypeVar("_Result")
Item = dict[str, Any]
"""Item with its attributes' types, as the service represents it."""


class DynamodbSettings(Struct, frozen=True):
    table: str
    region: str | None = None
    endpoint: str | None = None
    call_timeout_ns: int = 1_500_000_000
    """Time limit of one request."""
    write_timeout_ns: int = 10 * _SECOND_NS

    @property
    def name(self) -> str:
        """Name for log lines and error messages."""
        return f"DynamoDB table {self.table}"


class DynamodbTable:
    """One table. Each call has to be made within `in_words`."""

    def __init__(self, settings: DynamodbSettings) -> None:
        self.name = settings.name
        self.is_closed = False
        self._settings = settings
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="store")
        self._client: Any = None

    async def connect(self) -> None:
        self._client = await self._in_thread(partial(_connect, self._settings))

    def close(self) -> None:
        self.is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def in_words(self, timeout_ns: int) -> InWords:
        """Limit the time of the calls made within, and translate their errors. Raises StoreUnavailable, as those calls
        do."""
        if self.is_closed:
            raise StoreUnavailable(f"{self.name}: it is closed")
        return InWords(self.name, timeout_ns / _SECOND_NS)

    async def get(self, item_id: str) -> Item | None:
        answer = await self._ask("get_item", Key={"id": {"S": item_id}}, ConsistentRead=True)
        found: Item | None = answer.get("Item")
        return found

    async def put_new(self, item: Item) -> None:
        """Put an item unless there is one with its id."""
        try:
            await self._ask("put_item", Item=item, ConditionExpression="attribute_not_exists(id)")
        except ClientError as error:
            if not _is_refused(error):
                raise

    async def update(self, item_id: str, expression: str, condition: str, **values: object) -> Item | None:
        """Update an item. Returns its new state; None where the condition does not hold."""
        names = {f"#{name}": name for name in ("token", "key") if f"#{name}" in expression + condition}
        try:
            answer = await self._ask(
                "update_item",
                Key={"id": {"S": item_id}},
                UpdateExpression=expression,
                ConditionExpression=condition,
                ExpressionAttributeNames=names,
                ExpressionAttributeValues={f":{name}": typed(each) for name, each in values.items()},
                ReturnValues="ALL_NEW",
            )
        except ClientError as error:
            if _is_refused(error):
                return None
            raise
        found: Item = answer["Attributes"]
        return found

    async def ids(self) -> list[str]:
        found: list[str] = []
        start: Item = {}
        while True:
            page = await self._ask("scan", ProjectionExpression="id", ConsistentRead=True, **start)
            found += [item["id"]["S"] for item in page["Items"]]
            if "LastEvaluatedKey" not in page:
                return found
            start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    async def read(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Return the attribute `part` of each item that exists, by id."""
        found: dict[str, bytes] = {}
        for at in range(0, len(ids), _READ_ITEMS_MAX):
            found |= await self._read_some(ids[at : at + _READ_ITEMS_MAX])
        return found

    async def _read_some(self, ids: Sequence[str]) -> dict[str, bytes]:
        table, found = self._settings.table, dict[str, bytes]()
        wanted = [{"id": {"S": each}} for each in ids]
        for number in range(_TRIES):
            answer = await self._ask_plainly(
                "batch_get_item", RequestItems={table: {"Keys": wanted, "ConsistentRead": True}}
            )
            found |= {item["id"]["S"]: item["part"]["B"] for item in answer["Responses"].get(table, ())}
            wanted = answer.get("UnprocessedKeys", {}).get(table, {}).get("Keys", [])
            if not wanted:
                return found
            await asyncio.sleep(_THROTTLED_PAUSE_S * 2**number)
        raise StoreUnavailable(f"{self.name}: it is throttled")

    async def put(self, items: Sequence[Item]) -> None:
        await self._batch_write([{"PutRequest": {"Item": item}} for item in items])

    async def delete(self, ids: Sequence[str]) -> None:
        await self._batch_write([{"DeleteRequest": {"Key": {"id": {"S": each}}}} for each in ids])

    async def _batch_write(self, requests: list[Item]) -> None:
        table = self._settings.table
        for at in range(0, len(requests), _WRITE_ITEMS_MAX):
            wanted = requests[at : at + _WRITE_ITEMS_MAX]
            for number in range(_TRIES):
                answer = await self._ask_plainly("batch_write_item", RequestItems={table: wanted})
                wanted = answer.get("UnprocessedItems", {}).get(table, [])
                if not wanted:
                    break
                await asyncio.sleep(_THROTTLED_PAUSE_S * 2**number)
            else:
                raise StoreUnavailable(f"{self.name}: it is throttled")

    async def _ask(self, operation: str, **arguments: Any) -> Item:
        return await self._ask_plainly(operation, TableName=self._settings.table, **arguments)

    async def _ask_plainly(self, operation: str, **arguments: Any) -> Item:
        return await self._in_thread(partial(getattr(self._client, operation), **arguments))

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        """Run a blocking call in a thread. A call that is given up runs on, up to the client's own time limits."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


class InWords:
    """Limits the time of the calls made within, and turns their errors into StoreUnavailable."""

    def __init__(self, name: str, limit_s: float) -> None:
        self._name = name
        self._limit_s = limit_s
        self._timeout = asyncio.timeout(limit_s)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as late:
            raise StoreUnavailable(f"{self._name}: no answer within {self._limit_s:g} s") from late
        if isinstance(error, (ClientError, BotoCoreError)):
            raise StoreUnavailable(f"{self._name}: {error}") from error


def _connect(settings: DynamodbSettings) -> Any:
    """Make the client. Raises BotoCoreError."""
    timeout_s = settings.call_timeout_ns / _SECOND_NS
    config = Config(
        connect_timeout=timeout_s,
        read_timeout=timeout_s,
        retries={"mode": "standard", "total_max_attempts": 2},
        max_pool_connections=_THREADS,
        user_agent_extra="nightside-controller",
    )
    session = boto3.session.Session()
    return session.client("dynamodb", region_name=settings.region, endpoint_url=settings.endpoint, config=config)


def typed(each: object) -> Item:
    if isinstance(each, dict):
        return {"M": each}
    return {"N": str(each)} if isinstance(each, int) else {"S": str(each)}


def _is_refused(error: ClientError) -> bool:
    return error.response["Error"]["Code"] == "ConditionalCheckFailedException"
